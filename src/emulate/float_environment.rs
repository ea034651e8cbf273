//! The host's floating-point mode while the emulator computes.
//!
//! XLA runs custom calls on threads that flush subnormals (MXCSR's FTZ and DAZ bits); the emulator's arithmetic is IEEE and says
//! itself where the GPU flushes.

/// Puts the thread into IEEE mode (round to nearest, subnormals kept, exceptions masked) until dropped.
pub struct IeeeMode {
    #[cfg(target_arch = "x86_64")]
    saved: u32,
}

impl IeeeMode {
    pub fn enter() -> IeeeMode {
        #[cfg(target_arch = "x86_64")]
        {
            let mut saved = 0u32;
            let ieee = 0x1f80u32;
            // SAFETY: both instructions access only the word that they are given; 0x1f80 is MXCSR's reset value.
            unsafe {
                std::arch::asm!("stmxcsr [{}]", in(reg) &mut saved, options(nostack, preserves_flags));
                std::arch::asm!("ldmxcsr [{}]", in(reg) &ieee, options(nostack, preserves_flags, readonly));
            }
            IeeeMode { saved }
        }
        #[cfg(not(target_arch = "x86_64"))]
        IeeeMode {}
    }
}

impl Drop for IeeeMode {
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the value was read from MXCSR.
        unsafe {
            std::arch::asm!("ldmxcsr [{}]", in(reg) &self.saved, options(nostack, preserves_flags, readonly));
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn subnormals_survive_a_thread_that_flushes_them() {
        let flushing = 0x1f80u32 | 1 << 15 | 1 << 6;
        let outer = IeeeMode::enter();
        // SAFETY: sets FTZ and DAZ; `outer` restores the mode.
        unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &flushing, options(nostack, preserves_flags, readonly)) };
        let half = std::hint::black_box(0.5f32);
        let flushed = std::hint::black_box(f32::from_bits(0x0080_0000)) * half;
        let kept = {
            let _mode = IeeeMode::enter();
            std::hint::black_box(std::hint::black_box(f32::from_bits(0x0080_0000)) * half)
        };
        let flushed = std::hint::black_box(flushed);
        drop(outer);
        assert_eq!(flushed.to_bits(), 0);
        assert_eq!(kept.to_bits(), 0x0040_0000);
    }
}
