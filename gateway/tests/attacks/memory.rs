//! What an attack costs this process.

/// Bytes that may come with noise: the allocator's caches, the attack's own copies.
const NOISE: u64 = 96 << 20;

/// Bytes of memory in use, as Linux counts them.
pub(crate) struct Memory(u64);

impl Memory {
    pub(crate) fn now() -> Self {
        Self(resident())
    }

    /// Far less than an attack that is not bounded would have cost.
    pub(crate) fn assert_bounded(&self) {
        self.assert_below(NOISE);
    }

    /// Bytes since then.
    pub(crate) fn grown(&self) -> u64 {
        resident().saturating_sub(self.0)
    }

    /// Where some memory is the price.
    pub(crate) fn assert_below(&self, limit: u64) {
        let grown = self.grown();
        assert!(grown < limit, "memory grew by {} MiB", grown >> 20);
    }
}

/// 0 where it cannot be known: tests share a process unless nextest runs them.
fn resident() -> u64 {
    if std::env::var_os("NEXTEST").is_none() {
        return 0;
    }
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else {
        return 0;
    };
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    kib << 10
}
