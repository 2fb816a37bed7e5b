//! Tells `/readiness` if audit events of the API server are lost.

use parking_lot::Mutex;

/// The problem of the disk with the audit events, if it has one.
#[derive(Debug, Default)]
pub(crate) struct AuditHealth(Mutex<Option<AuditProblem>>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum AuditProblem {
    /// The disk was full when the ring had so many bytes, which are fewer than it may have.
    DiskTooSmall(u64),
    /// The last events could not be written.
    Unwritable(String),
}

impl AuditHealth {
    /// Records that events were written. The ring had `full_at` bytes if the disk was full, and has `bytes` now.
    pub(crate) fn set_written(&self, full_at: Option<u64>, bytes: u64) {
        let mut problem = self.0.lock();
        *problem = match (full_at, problem.take()) {
            (Some(full_at), _) => Some(AuditProblem::DiskTooSmall(full_at)),
            // It is solved once the ring has become larger.
            (None, Some(AuditProblem::DiskTooSmall(full_at))) if bytes <= full_at => {
                Some(AuditProblem::DiskTooSmall(full_at))
            }
            (None, _) => None,
        };
    }

    /// Records that events could not be written.
    pub(crate) fn set_failed(&self, error: String) {
        *self.0.lock() = Some(AuditProblem::Unwritable(error));
    }

    /// Returns true if `/readiness` shows a problem.
    pub(crate) fn is_degraded(&self) -> bool {
        self.0.lock().is_some()
    }

    /// Returns a line for the problem.
    pub(crate) fn problem(&self) -> Option<String> {
        Some(match self.0.lock().as_ref()? {
            AuditProblem::DiskTooSmall(bytes) => format!(
                "audit: the disk is full with {bytes} bytes of audit events, which are fewer than --audit-max-bytes: the oldest events are \
                 removed early"
            ),
            AuditProblem::Unwritable(error) => {
                format!(
                    "audit: new audit events are lost, because --audit-directory cannot be written: {error}"
                )
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_disk_is_a_problem_until_the_ring_has_grown() {
        let health = AuditHealth::default();
        health.set_written(None, 10);
        assert!(!health.is_degraded());
        health.set_written(Some(100), 90);
        health.set_written(None, 100);
        assert!(health.problem().unwrap().contains("full with 100 bytes"));
        health.set_written(None, 101);
        assert_eq!(health.problem(), None);
    }

    #[test]
    fn failed_write_is_a_problem_until_the_next_one() {
        let health = AuditHealth::default();
        health.set_failed("I/O error".to_owned());
        assert!(health.is_degraded() && health.problem().unwrap().ends_with("I/O error"));
        health.set_written(None, 1);
        assert_eq!(health.problem(), None);
    }
}
