//! The `libefa.so.1` of the emulated device: a front, because a program must find the functions in a
//! library of that name while they share their state with `libibverbs.so.1`.
//!
//! Each function jumps to the one that `efa-emu-verbs` exports as `efa_emu_NAME`; arguments and
//! result pass through untouched. For unsafe contracts and behaviour see `efadv` there.

/// Defines `NAME@@VERSION` as a jump to `efa_emu_NAME`.
macro_rules! fronts {
    ($($version:literal { $($name:ident),+ $(,)? })+) => { $($(
        #[cfg(target_arch = "x86_64")]
        core::arch::global_asm!(
            ".text",
            concat!(".globl __front_", stringify!($name)),
            concat!(".type __front_", stringify!($name), ", @function"),
            concat!("__front_", stringify!($name), ":"),
            concat!("jmp *efa_emu_", stringify!($name), "@GOTPCREL(%rip)"),
            concat!(".size __front_", stringify!($name), ", . - __front_", stringify!($name)),
            concat!(
                ".symver __front_", stringify!($name), ", ",
                stringify!($name), "@@", $version, ", remove"
            ),
            options(att_syntax),
        );
    )+)+ };
}

#[cfg(not(target_arch = "x86_64"))]
compile_error!("the symbol fronts are written for x86-64");

fronts! {
    "EFA_1.0" { efadv_create_driver_qp }
    "EFA_1.1" { efadv_create_qp_ex, efadv_query_ah, efadv_query_device }
    "EFA_1.2" { efadv_create_cq, efadv_cq_from_ibv_cq_ex }
    "EFA_1.3" { efadv_query_mr }
    "EFA_1.4" { efadv_query_cq, efadv_query_qp_wqs }
    "EFA_1.5" { efadv_get_max_rq_depth, efadv_get_max_sq_depth }
    "EFA_1.6" { efadv_qp_from_ibv_qp_ex }
    "EFA_1.7" { efadv_create_comp_cntr }
}
