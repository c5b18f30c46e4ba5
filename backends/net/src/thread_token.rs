//! A number that tells the threads of a process apart, in one instruction.

/// The token of this thread: not 0, a multiple of 4, and no other living thread's. Cost: one load.
///
/// It is the thread pointer, which the C library's TLS gives each thread (ELF Handling For
/// Thread-Local Storage, 3.4.6 for x86-64: the word at %fs:0 holds its own address; 3.5 for
/// AArch64: TPIDR_EL0). The address of a thread-local variable is the same, but a shared library
/// needs a call to get it.
#[inline(always)]
pub fn token() -> usize {
    let token: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a load of a word that every thread has; it changes nothing but the output register.
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) token,
            options(nostack, preserves_flags, readonly, pure));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a read of a register that user space may read; it changes nothing but the output.
    unsafe {
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) token,
            options(nomem, nostack, preserves_flags, pure));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        std::thread_local! { static PLACE: u64 = const { 0 } }
        token = PLACE.with(|place| core::ptr::from_ref(place).addr());
    }
    token
}

#[cfg(test)]
mod tests {
    use super::token;

    #[test]
    fn threads_that_live_at_once_have_tokens_of_their_own() {
        let barrier = std::sync::Barrier::new(8);
        let mut tokens: Vec<usize> = std::thread::scope(|scope| {
            let run = || {
                let (first, _) = (token(), barrier.wait());
                assert_eq!(token(), first);
                first
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(run)).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        tokens.push(token());
        assert!(tokens.iter().all(|t| *t != 0 && t % 4 == 0));
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), 9);
    }
}
