use core::arch::asm;

/// Changes the count by an instruction. Reading and writing are two steps here; a signal handler
/// between them restores the count before it returns.
macro_rules! change {
    ($instruction:literal) => {
        // SAFETY: changes this thread's variable and nothing else.
        unsafe {
            asm!(
                "adrp {place}, :gottprel:efa_emu_verbs_locks",
                "ldr {place}, [{place}, :gottprel_lo12:efa_emu_verbs_locks]",
                "mrs {thread}, tpidr_el0",
                "ldr {count:w}, [{thread}, {place}]",
                concat!($instruction, " {count:w}, {count:w}, #1"),
                "str {count:w}, [{thread}, {place}]",
                place = out(reg) _,
                thread = out(reg) _,
                count = out(reg) _,
                options(nostack, preserves_flags),
            );
        }
    };
}

#[inline(always)]
pub(super) fn add() {
    change!("add");
}

#[inline(always)]
pub(super) fn subtract() {
    change!("sub");
}

#[inline(always)]
pub(super) fn address() -> usize {
    let address: usize;
    // SAFETY: reads where this thread's variables are.
    unsafe {
        asm!(
            "mrs {address}, tpidr_el0",
            address = out(reg) address,
            options(nomem, nostack, preserves_flags, pure),
        );
    }
    address
}

pub(super) fn count() -> u32 {
    let count: u32;
    // SAFETY: reads this thread's variable.
    unsafe {
        asm!(
            "adrp {place}, :gottprel:efa_emu_verbs_locks",
            "ldr {place}, [{place}, :gottprel_lo12:efa_emu_verbs_locks]",
            "mrs {thread}, tpidr_el0",
            "ldr {count:w}, [{thread}, {place}]",
            place = out(reg) _,
            thread = out(reg) _,
            count = lateout(reg) count,
            options(nostack, preserves_flags, readonly),
        );
    }
    count
}
