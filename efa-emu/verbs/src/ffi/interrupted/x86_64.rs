use core::arch::asm;

#[inline(always)]
pub(super) fn add() {
    // SAFETY: changes this thread's variable and nothing else.
    unsafe {
        asm!(
            "mov {place}, qword ptr [rip + efa_emu_verbs_locks@GOTTPOFF]",
            "inc dword ptr fs:[{place}]",
            place = out(reg) _,
            options(nostack),
        );
    }
}

#[inline(always)]
pub(super) fn subtract() {
    // SAFETY: as in `add`.
    unsafe {
        asm!(
            "mov {place}, qword ptr [rip + efa_emu_verbs_locks@GOTTPOFF]",
            "dec dword ptr fs:[{place}]",
            place = out(reg) _,
            options(nostack),
        );
    }
}

#[inline(always)]
pub(super) fn address() -> usize {
    let address: usize;
    // SAFETY: the instruction reads the address of this thread's variables, which is also the first
    // variable.
    unsafe {
        asm!(
            "mov {address}, qword ptr fs:[0]",
            address = out(reg) address,
            options(nostack, readonly, pure),
        );
    }
    address
}

pub(super) fn count() -> u32 {
    let count: u32;
    // SAFETY: reads this thread's variable.
    unsafe {
        asm!(
            "mov {place}, qword ptr [rip + efa_emu_verbs_locks@GOTTPOFF]",
            "mov {count:e}, dword ptr fs:[{place}]",
            place = out(reg) _,
            count = lateout(reg) count,
            options(nostack, readonly),
        );
    }
    count
}
