//! The `libefa.so.1` of the emulated device: a front, because a program must find the functions in
//! a library of that name while they share their state with `libibverbs.so.1`.
//!
//! Each function jumps to the one that `efa-emu-verbs` exports as `efa_emu_NAME`; arguments and
//! result pass through untouched. For unsafe contracts and behaviour see `efadv` in that crate.

/// The jump to a function by its address, which the loader has put into the library's table.
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    ($target:expr) => {
        concat!("jmp qword ptr [rip + ", $target, "@GOTPCREL]")
    };
}

/// The same for arm64. The procedure call standard leaves `x16` to such jumps.
#[cfg(target_arch = "aarch64")]
#[rustfmt::skip]
macro_rules! jump {
    ($target:expr) => {
        concat!(
            "adrp x16, :got:", $target, "\n",
            "ldr x16, [x16, :got_lo12:", $target, "]\n",
            "br x16",
        )
    };
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the symbol fronts are written for x86-64 and arm64");

/// Defines `NAME@@VERSION` as a jump to `efa_emu_NAME`.
macro_rules! fronts {
    ($($version:literal { $($name:ident),+ $(,)? })+) => { $($(
        core::arch::global_asm!(
            ".text",
            concat!(".globl __front_", stringify!($name)),
            concat!(".type __front_", stringify!($name), ", @function"),
            concat!("__front_", stringify!($name), ":"),
            jump!(concat!("efa_emu_", stringify!($name))),
            concat!(".size __front_", stringify!($name), ", . - __front_", stringify!($name)),
            concat!(
                ".symver __front_", stringify!($name), ", ",
                stringify!($name), "@@", $version, ", remove"
            ),
        );
    )+)+ };
}

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
