//! The recent requests and lines of the audit log of a replica, for the web page.
//!
//! ```text
//!   proxy: RequestLog ───── head of the response ──► requests ──┐
//!   peers: request of another replica, with its tunnel ─────────┼──► answer ──► this replica's page, or another replica
//!   AuditLog ── each line ──────────────────────► audit lines ──┘
//! ```
//!
//! Each replica keeps its own, in memory, and only if it serves the page. The oldest entries leave first. The replica that a reader has asked
//! decides whose entries the reader may see, and asks the other ones with that decision.

pub(super) mod api;
mod audit_lines;
mod requests;

use access::Caller;
use proto::ReplicaId;
use serde::{Deserialize, Serialize};

use self::{
    audit_lines::{AuditFilter, AuditRing},
    requests::{RequestRecord, RequestRing},
};
use kas_core::request_hooks::{ObservedRequest, RequestObserver};

/// The most entries that a replica keeps of each kind.
pub(crate) const MAX_ENTRIES: usize = 10_000;

/// The recent entries of a replica.
#[derive(Debug)]
pub struct Recent {
    replica: ReplicaId,
    /// The lines of the audit log.
    audit: AuditRing,
    /// The requests of callers.
    requests: RequestRing,
}

/// The reader of entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reader {
    /// May see all entries.
    Auditor,
    /// May see the entries of its own requests.
    Caller {
        /// The name of the caller.
        name: String,
        /// The user of its OIDC token.
        user: Option<String>,
    },
}

/// A question to a replica, for a reader of the page.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Question {
    /// The reader that asks.
    pub(crate) reader: Reader,
    /// The entries that are asked for.
    pub(crate) subject: Subject,
}

/// The entries that a question is about.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Subject {
    /// Lines of the audit log. The answer is an [`AuditLines`](audit_lines::AuditLines).
    Audit(AuditFilter),
    /// The requests with an id. The answer is a [`RequestAnswer`](requests::RequestAnswer).
    Request(String),
}

impl Recent {
    /// Returns a replica without entries.
    pub fn new(replica: ReplicaId) -> Self {
        Self { replica, audit: AuditRing::default(), requests: RequestRing::new() }
    }

    /// Returns the answer to a question as JSON.
    pub(crate) fn answer(&self, Question { reader, subject }: &Question) -> String {
        let text = match subject {
            Subject::Audit(filter) => serde_json::to_string(&self.audit.lines(reader, filter)),
            Subject::Request(id) => serde_json::to_string(&self.requests.find(reader, id, self.replica)),
        };
        text.expect("it has keys that are text")
    }
}

impl RequestObserver for Recent {
    fn on_result(&self, request: &ObservedRequest<'_>) {
        self.requests.push(RequestRecord::new(request));
    }

    fn on_audit_line(&self, line: &[u8]) {
        self.audit.push(line);
    }
}

impl Reader {
    /// Returns the reader that a caller is.
    pub(crate) fn of(caller: &Caller) -> Self {
        if caller.may_audit() {
            Self::Auditor
        } else {
            Self::Caller { name: caller.name().to_owned(), user: caller.user.clone() }
        }
    }

    /// Returns whether the reader may see an entry of this caller.
    fn may_see(&self, caller: Option<&str>, by: Option<&str>) -> bool {
        match self {
            Self::Auditor => true,
            Self::Caller { name, user } => caller == Some(name) && by == user.as_deref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reader_without_the_right_sees_only_its_own_entries() {
        let reader =
            |user: Option<&str>| Reader::Caller { name: "dev".to_owned(), user: user.map(str::to_owned) };
        for (reader, caller, user, expected) in [
            (Reader::Auditor, None, None, true),
            (Reader::Auditor, Some("ops"), Some("a"), true),
            (reader(None), Some("dev"), None, true),
            (reader(None), Some("ops"), None, false),
            (reader(None), None, None, false),
            (reader(Some("a")), Some("dev"), Some("a"), true),
            // The callers of an entry with `oidc` have one name and several users.
            (reader(Some("a")), Some("dev"), Some("b"), false),
            (reader(Some("a")), Some("dev"), None, false),
            (reader(None), Some("dev"), Some("a"), false),
        ] {
            assert_eq!(reader.may_see(caller, user), expected, "{reader:?} {caller:?} {user:?}");
        }
    }
}
