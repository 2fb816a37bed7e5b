//! The memory that an attack uses.

/// The tolerance in bytes, for caches of the allocator and copies of the attack.
const NOISE: u64 = 96 << 20;

/// The resident memory of the process, in bytes.
pub(crate) struct Memory(u64);

impl Memory {
    pub(crate) fn now() -> Self {
        Self(resident())
    }

    /// Checks that the memory grew far less than by an unbounded attack.
    pub(crate) fn assert_bounded(&self) {
        self.assert_below(NOISE);
    }

    /// Returns the growth in bytes.
    pub(crate) fn grown(&self) -> u64 {
        resident().saturating_sub(self.0)
    }

    /// Checks the growth against a given limit.
    pub(crate) fn assert_below(&self, limit: u64) {
        let grown = self.grown();
        assert!(grown < limit, "memory grew by {} MiB", grown >> 20);
    }
}

/// Returns 0 if the value is meaningless: without nextest, tests share a process.
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
