//! The symbols of rdma-core's libraries.

/// Every public symbol of rdma-core's libibverbs, by symbol version.
pub const VERBS: &[(&str, &str)] = &[
    (
        "IBVERBS_1.0",
        "ibv_copy_path_rec_from_kern ibv_copy_path_rec_to_kern ibv_copy_qp_attr_from_kern \
         ibv_create_comp_channel ibv_destroy_comp_channel ibv_get_sysfs_path ibv_rate_to_mult \
         ibv_read_sysfs_file mult_to_ibv_rate ibv_ack_async_event ibv_ack_cq_events ibv_alloc_pd \
         ibv_attach_mcast ibv_close_device ibv_create_ah ibv_create_cq ibv_create_qp \
         ibv_create_srq ibv_dealloc_pd ibv_dereg_mr ibv_destroy_ah ibv_destroy_cq ibv_destroy_qp \
         ibv_destroy_srq ibv_detach_mcast ibv_free_device_list ibv_get_async_event \
         ibv_get_cq_event ibv_get_device_guid ibv_get_device_list ibv_get_device_name \
         ibv_modify_qp ibv_modify_srq ibv_open_device ibv_query_device ibv_query_gid \
         ibv_query_pkey ibv_query_port ibv_query_qp ibv_query_srq ibv_reg_mr ibv_resize_cq",
    ),
    (
        "IBVERBS_1.1",
        "ibv_ack_async_event ibv_ack_cq_events ibv_alloc_pd ibv_attach_mcast ibv_close_device \
         ibv_copy_ah_attr_from_kern ibv_create_ah ibv_create_ah_from_wc ibv_create_cq \
         ibv_create_qp ibv_create_srq ibv_dealloc_pd ibv_dereg_mr ibv_destroy_ah ibv_destroy_cq \
         ibv_destroy_qp ibv_destroy_srq ibv_detach_mcast ibv_dofork_range ibv_dontfork_range \
         ibv_event_type_str ibv_fork_init ibv_free_device_list ibv_get_async_event \
         ibv_get_cq_event ibv_get_device_guid ibv_get_device_list ibv_get_device_name \
         ibv_init_ah_from_wc ibv_modify_qp ibv_modify_srq ibv_node_type_str ibv_open_device \
         ibv_port_state_str ibv_query_device ibv_query_gid ibv_query_pkey ibv_query_port \
         ibv_query_qp ibv_query_srq ibv_rate_to_mbps ibv_reg_mr ibv_register_driver ibv_rereg_mr \
         ibv_resize_cq ibv_resolve_eth_l2_from_gid ibv_wc_status_str mbps_to_ibv_rate",
    ),
    ("IBVERBS_1.5", "ibv_get_pkey_index"),
    ("IBVERBS_1.6", "ibv_qp_to_qp_ex"),
    ("IBVERBS_1.7", "ibv_reg_mr_iova"),
    ("IBVERBS_1.8", "ibv_reg_mr_iova2"),
    ("IBVERBS_1.9", "ibv_get_device_index"),
    (
        "IBVERBS_1.10",
        "ibv_import_device ibv_import_mr ibv_import_pd ibv_query_ece ibv_set_ece ibv_unimport_mr \
         ibv_unimport_pd",
    ),
    ("IBVERBS_1.11", "_ibv_query_gid_ex _ibv_query_gid_table"),
    ("IBVERBS_1.12", "ibv_reg_dmabuf_mr"),
    (
        "IBVERBS_1.13",
        "ibv_import_dm ibv_is_fork_initialized ibv_unimport_dm",
    ),
    ("IBVERBS_1.14", "ibv_query_qp_data_in_order"),
    (
        "IBVERBS_1.15",
        "ibv_alloc_dmah ibv_dealloc_dmah ibv_reg_mr_ex",
    ),
    (
        "IBVERBS_1.16",
        "ibv_dm_export_dmabuf_fd ibv_query_port_speed",
    ),
    ("IBVERBS_1.17", "ibv_alloc_buf ibv_free_buf ibv_reg_buf_mr"),
    (
        "IBVERBS_1.18",
        "_ibv_query_comp_cntr_caps ibv_create_comp_cntr ibv_destroy_comp_cntr \
         ibv_export_buf_dmabuf_fd ibv_inc_comp_cntr ibv_inc_err_comp_cntr ibv_qp_attach_comp_cntr \
         ibv_read_comp_cntr ibv_read_err_comp_cntr ibv_set_comp_cntr ibv_set_err_comp_cntr",
    ),
];

/// Every public symbol of rdma-core's libefa.
pub const EFADV: &[(&str, &str)] = &[
    ("EFA_1.0", "efadv_create_driver_qp"),
    (
        "EFA_1.1",
        "efadv_create_qp_ex efadv_query_ah efadv_query_device",
    ),
    ("EFA_1.2", "efadv_create_cq efadv_cq_from_ibv_cq_ex"),
    ("EFA_1.3", "efadv_query_mr"),
    ("EFA_1.4", "efadv_query_cq efadv_query_qp_wqs"),
    ("EFA_1.5", "efadv_get_max_rq_depth efadv_get_max_sq_depth"),
    ("EFA_1.6", "efadv_qp_from_ibv_qp_ex"),
    ("EFA_1.7", "efadv_create_comp_cntr"),
];

/// The versions of the private interface of rdma-core's libibverbs, from release 26 to 65. Each
/// also has a function `verbs_register_driver_VERSION`.
pub const PRIVATE_VERSIONS: &[u32] = &[25, 33, 34, 57, 59, 64, 65];

/// The functions of the private interface in any of these versions.
pub const PRIVATE: &str = "__ioctl_final_num_attrs __verbs_log _verbs_init_and_alloc_context execute_ioctl \
     ibv_cmd_advise_mr ibv_cmd_alloc_dm ibv_cmd_alloc_dmah ibv_cmd_alloc_mw ibv_cmd_alloc_pd \
     ibv_cmd_attach_mcast ibv_cmd_close_xrcd ibv_cmd_create_ah ibv_cmd_create_comp_cntr \
     ibv_cmd_create_counters ibv_cmd_create_cq ibv_cmd_create_cq_ex ibv_cmd_create_cq_ex2 \
     ibv_cmd_create_flow ibv_cmd_create_flow_action_esp ibv_cmd_create_qp \
     ibv_cmd_create_qp_ex ibv_cmd_create_qp_ex2 ibv_cmd_create_rwq_ind_table \
     ibv_cmd_create_srq ibv_cmd_create_srq_ex ibv_cmd_create_wq ibv_cmd_dealloc_mw \
     ibv_cmd_dealloc_pd ibv_cmd_dereg_mr ibv_cmd_destroy_ah ibv_cmd_destroy_comp_cntr \
     ibv_cmd_destroy_counters ibv_cmd_destroy_cq ibv_cmd_destroy_flow \
     ibv_cmd_destroy_flow_action ibv_cmd_destroy_qp ibv_cmd_destroy_rwq_ind_table \
     ibv_cmd_destroy_srq ibv_cmd_destroy_wq ibv_cmd_detach_mcast ibv_cmd_export_dmabuf_fd \
     ibv_cmd_free_dm ibv_cmd_free_dmah ibv_cmd_get_context ibv_cmd_inc_comp_cntr \
     ibv_cmd_inc_err_comp_cntr ibv_cmd_modify_cq ibv_cmd_modify_flow_action_esp \
     ibv_cmd_modify_qp ibv_cmd_modify_qp_ex ibv_cmd_modify_srq ibv_cmd_modify_wq \
     ibv_cmd_open_qp ibv_cmd_open_xrcd ibv_cmd_poll_cq ibv_cmd_post_recv ibv_cmd_post_send \
     ibv_cmd_post_srq_recv ibv_cmd_qp_attach_comp_cntr ibv_cmd_query_comp_cntr_caps \
     ibv_cmd_query_context ibv_cmd_query_device ibv_cmd_query_device_any \
     ibv_cmd_query_device_ex ibv_cmd_query_mr ibv_cmd_query_port ibv_cmd_query_port_speed \
     ibv_cmd_query_qp ibv_cmd_query_srq ibv_cmd_read_comp_cntr ibv_cmd_read_counters \
     ibv_cmd_read_err_comp_cntr ibv_cmd_reg_dm_mr ibv_cmd_reg_dmabuf_mr ibv_cmd_reg_mr \
     ibv_cmd_reg_mr_ex ibv_cmd_req_notify_cq ibv_cmd_rereg_mr ibv_cmd_resize_cq \
     ibv_cmd_set_comp_cntr ibv_cmd_set_err_comp_cntr ibv_dmabuf_heap_alloc \
     ibv_dmabuf_heap_cc_shared_init ibv_dmabuf_heap_destroy ibv_dmabuf_heap_free \
     ibv_query_gid_type ibv_read_ibdev_sysfs_file ibv_wr_opcode_str verbs_init_cq \
     verbs_open_device verbs_set_ops verbs_uninit_context";

/// The private functions that are implemented here.
pub const PRIVATE_IN_USE: &str = "ibv_query_gid_type ibv_read_ibdev_sysfs_file";

/// The C `bool` of the private interface.
pub const PRIVATE_FLAG: &str = "verbs_allow_disassociate_destroy";
