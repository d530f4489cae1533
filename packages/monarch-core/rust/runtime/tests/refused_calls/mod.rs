//! System calls that the kernel refuses to one thread, by a filter of seccomp.

/// Makes a system call of this thread fail with `errno` from now on. With `operation`, only calls with this second argument fail.
pub fn refuse(call: libc::c_long, operation: Option<libc::c_int>, errno: libc::c_int) {
    let instruction = |code, jf, k| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let (load, compare) = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K);
    // A comparison that fails jumps to the last instruction.
    let mut filter = vec![instruction(load, 0, NUMBER), instruction(compare, if operation.is_some() { 3 } else { 1 }, call as u32)];
    if let Some(operation) = operation {
        filter.extend([instruction(load, 0, SECOND_ARGUMENT), instruction(compare, 1, operation as u32)]);
    }
    let answer = libc::BPF_RET | libc::BPF_K;
    filter.extend([instruction(answer, 0, libc::SECCOMP_RET_ERRNO | errno as u32), instruction(answer, 0, libc::SECCOMP_RET_ALLOW)]);
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the filter outlives the calls, and the kernel copies it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

/// The offsets in `seccomp_data` of the number of the call, and of the low half of its second argument on little-endian machines.
const NUMBER: u32 = 0;
const SECOND_ARGUMENT: u32 = 24;
