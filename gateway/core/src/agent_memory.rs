//! The memory that kas keeps for one agent: for its calls and streams, in all of its tunnels to this replica.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// The most bytes of one agent. Ten agentk of GitLab with 500 streams each need a third of it.
const MAX_BYTES: usize = 64 << 20;

/// Counts the bytes of one agent. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct AgentMemory(Arc<AtomicUsize>);

/// Bytes of one agent, which count until this is dropped.
#[derive(Debug)]
pub struct MemoryGuard {
    memory: AgentMemory,
    bytes: usize,
}

/// The error of an agent for which kas keeps as many bytes as it may.
#[derive(Debug, thiserror::Error)]
#[error("kas keeps {} MiB for this agent already: it has too many calls, or too long messages", MAX_BYTES >> 20)]
pub struct OutOfMemory;

impl AgentMemory {
    /// Returns a guard without bytes.
    pub fn guard(&self) -> MemoryGuard {
        MemoryGuard { memory: self.clone(), bytes: 0 }
    }
}

impl MemoryGuard {
    /// Changes the bytes of this guard.
    ///
    /// # Errors
    ///
    /// The agent would have too many. The guard keeps those that it has.
    pub fn set(&mut self, bytes: usize) -> Result<(), OutOfMemory> {
        let Some(added) = bytes.checked_sub(self.bytes) else {
            self.memory.0.fetch_sub(self.bytes - bytes, Relaxed);
            self.bytes = bytes;
            return Ok(());
        };
        if self.memory.0.fetch_add(added, Relaxed) + added > MAX_BYTES {
            self.memory.0.fetch_sub(added, Relaxed);
            return Err(OutOfMemory);
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for MemoryGuard {
    fn drop(&mut self) {
        self.memory.0.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_of_one_agent_share_its_bytes() {
        let memory = AgentMemory::default();
        let [mut first, mut second] = [memory.guard(), memory.guard()];
        first.set(MAX_BYTES - 10).unwrap();
        second.set(10).unwrap();
        assert!(second.set(11).is_err());
        first.set(5).unwrap();
        second.set(11).unwrap();
        drop(first);
        assert_eq!(memory.0.load(Relaxed), 11);
        drop(second);
        assert_eq!(memory.0.load(Relaxed), 0);
    }
}
