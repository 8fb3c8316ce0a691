//! System calls that fail.

/// Makes these system calls fail with `ENOSYS` in the calling thread and in the processes that it
/// starts.
pub fn forbid(calls: &[libc::c_long]) {
    forbid_with(libc::ENOSYS, calls);
}

/// As [`forbid`], with this error.
pub fn forbid_with(error: i32, calls: &[libc::c_long]) {
    let step = |code: u32, jump_if: u8, jump_else: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt: jump_if,
        jf: jump_else,
        k,
    };
    let give = |value| step(libc::BPF_RET | libc::BPF_K, 0, 0, value);
    // The number of the system call is the first field of the filter's data.
    let mut filter = vec![step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    for call in calls {
        let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        filter.push(step(equal, 0, 1, *call as u32));
        filter.push(give(libc::SECCOMP_RET_ERRNO | error as u32));
    }
    filter.push(give(libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: a complete filter program, which the kernel copies.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        let answer = libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program);
        assert_eq!(answer, 0);
    }
}
