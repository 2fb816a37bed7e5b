//! The recent lines of the audit log.

use std::collections::VecDeque;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{MAX_ENTRIES, Reader};

/// The most bytes of all lines.
const MAX_BYTES: usize = 8 << 20;
/// The most bytes of one answer.
const MAX_ANSWER: usize = 1 << 20;

/// The lines, the oldest one first.
#[derive(Debug, Default)]
pub(crate) struct AuditRing(Mutex<Lines>);

#[derive(Debug, Default)]
struct Lines {
    lines: VecDeque<Box<[u8]>>,
    bytes: usize,
}

/// Selects lines. A part that is `None` selects all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AuditFilter {
    /// The name or the id of the agent.
    pub(crate) agent: Option<String>,
    /// The name of the caller, or its user.
    pub(crate) caller: Option<String>,
    pub(crate) verb: Option<String>,
    pub(crate) outcome: Option<AuditOutcome>,
    /// The first time and the last one, as lines have it.
    pub(crate) from: Option<String>,
    pub(crate) to: Option<String>,
    /// Leaves out the successful questions of callers about their own rights, of which the page asks several for each object.
    #[serde(default)]
    pub(crate) without_reviews: bool,
    /// The most lines of the answer.
    pub(crate) limit: usize,
}

/// The ends of the paths at which callers ask about their own rights.
const REVIEWS: [&str; 2] = [
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
    "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
];

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AuditOutcome {
    /// Neither kas nor agentk has refused it.
    Allow,
    /// kas or agentk has refused it.
    Deny,
    /// Its status is 400 or more, whoever has decided that.
    Failed,
}

/// The lines of a replica that a reader has asked for, the newest one first.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct AuditLines {
    pub(crate) lines: Vec<Box<RawValue>>,
    /// There are older lines that the filter selects.
    pub(crate) has_more: bool,
    /// The time of the oldest line of all that the replica keeps.
    pub(crate) oldest: Option<String>,
}

/// The fields of a line that a filter needs.
#[derive(Debug, Deserialize)]
pub(crate) struct LineFields<'a> {
    #[serde(borrow)]
    pub(crate) time: &'a str,
    caller: Option<String>,
    user: Option<String>,
    agent: Option<String>,
    agent_id: Option<u64>,
    verb: Option<String>,
    path: Option<String>,
    decision: Option<String>,
    status: Option<u16>,
}

impl AuditRing {
    /// Adds a line of JSON.
    pub(crate) fn push(&self, line: &[u8]) {
        let line: Box<[u8]> = line.trim_ascii_end().into();
        let mut ring = self.0.lock();
        ring.bytes += line.len();
        ring.lines.push_back(line);
        while ring.lines.len() > MAX_ENTRIES || ring.bytes > MAX_BYTES {
            let oldest = ring.lines.pop_front();
            ring.bytes -= oldest.map_or(0, |line| line.len());
        }
    }

    /// Returns the lines that the reader may see and the filter selects. It parses each line until there are enough.
    pub(super) fn lines(&self, reader: &Reader, filter: &AuditFilter) -> AuditLines {
        // The requests of callers wait only while the list is copied.
        let lines: Vec<Box<[u8]>> = self.0.lock().lines.iter().rev().cloned().collect();
        let oldest = lines.last().and_then(|line| fields(line)).map(|fields| fields.time.to_owned());
        let mut answer = AuditLines { oldest, ..AuditLines::default() };
        let mut bytes = 0;
        for line in &lines {
            let Some(fields) = fields(line) else { continue };
            let (caller, user) = (fields.caller.as_deref(), fields.user.as_deref());
            if !reader.may_see(caller, user) || !filter.selects(&fields) {
                continue;
            }
            bytes += line.len();
            if answer.lines.len() >= filter.limit || bytes > MAX_ANSWER {
                answer.has_more = true;
                break;
            }
            answer.lines.extend(serde_json::from_slice(line).ok());
        }
        answer
    }
}

impl AuditFilter {
    fn selects(&self, line: &LineFields<'_>) -> bool {
        let is = |wanted: &Option<String>, values: &[Option<&str>]| {
            wanted.as_deref().is_none_or(|wanted| values.contains(&Some(wanted)))
        };
        let id = line.agent_id.map(|id| id.to_string());
        is(&self.agent, &[line.agent.as_deref(), id.as_deref()])
            && is(&self.caller, &[line.caller.as_deref(), line.user.as_deref()])
            && is(&self.verb, &[line.verb.as_deref()])
            && self.outcome.is_none_or(|outcome| match outcome {
                AuditOutcome::Allow => line.decision.as_deref() == Some("allow"),
                AuditOutcome::Deny => line.decision.as_deref() == Some("deny"),
                AuditOutcome::Failed => line.status.is_some_and(|status| status >= 400),
            })
            // Times of the same form are in the order of their texts.
            && self.from.as_deref().is_none_or(|from| line.time >= from)
            && self.to.as_deref().is_none_or(|to| line.time <= to)
            && !(self.without_reviews && line.is_review())
    }
}

impl LineFields<'_> {
    /// Returns whether a caller has asked about its own rights, and was not refused. Who leaves a page cancels its questions.
    fn is_review(&self) -> bool {
        let path = self.path.as_deref().unwrap_or_default();
        let path = path.split_once('?').map_or(path, |(path, _)| path);
        REVIEWS.iter().any(|end| path.ends_with(end)) && self.status.is_none_or(|status| status < 400)
    }
}

/// Returns the fields of a line, which kas has written itself.
pub(crate) fn fields(line: &[u8]) -> Option<LineFields<'_>> {
    serde_json::from_slice(line).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn line(second: usize, caller: &str) -> Value {
        json!({
            "time": format!("2026-01-01T00:00:{second:02}.000Z"), "caller": caller, "user": null, "agent": "prod",
            "agent_id": 7, "verb": if second.is_multiple_of(2) { "delete" } else { "get" },
            "decision": if second < 5 { "allow" } else { "deny" }, "status": if second == 3 { 404 } else { 200 },
        })
    }

    fn found(ring: &AuditRing, reader: &Reader, filter: AuditFilter) -> Vec<String> {
        let answer = ring.lines(reader, &AuditFilter { limit: 100, ..filter });
        let second = |line: &RawValue| {
            let line: Value = serde_json::from_str(line.get()).unwrap();
            line["time"].as_str().unwrap()[17..19].to_owned()
        };
        answer.lines.iter().map(|line| second(line)).collect()
    }

    #[test]
    fn filter_selects_the_newest_lines_first() {
        let ring = AuditRing::default();
        for second in 0..10 {
            let caller = if second < 8 { "dev" } else { "ops" };
            ring.push(format!("{}\n", line(second, caller)).as_bytes());
        }
        let text = |text: &str| Some(text.to_owned());
        let all = AuditFilter::default;
        for (filter, expected) in [
            (all(), "09 08 07 06 05 04 03 02 01 00"),
            (AuditFilter { caller: text("ops"), ..all() }, "09 08"),
            (AuditFilter { agent: text("7"), verb: text("delete"), ..all() }, "08 06 04 02 00"),
            (
                AuditFilter { agent: text("prod"), outcome: Some(AuditOutcome::Deny), ..all() },
                "09 08 07 06 05",
            ),
            (AuditFilter { outcome: Some(AuditOutcome::Allow), verb: text("get"), ..all() }, "03 01"),
            (AuditFilter { outcome: Some(AuditOutcome::Failed), ..all() }, "03"),
            (AuditFilter { agent: text("test"), ..all() }, ""),
            (
                AuditFilter {
                    from: text("2026-01-01T00:00:02.000Z"),
                    to: text("2026-01-01T00:00:04.000Z"),
                    ..all()
                },
                "04 03 02",
            ),
        ] {
            assert_eq!(found(&ring, &Reader::Auditor, filter.clone()).join(" "), expected, "{filter:?}");
        }
        let dev = Reader::Caller { name: "dev".to_owned(), user: None };
        assert_eq!(found(&ring, &dev, AuditFilter { caller: text("ops"), ..all() }).len(), 0);
        let first = ring.lines(&dev, &AuditFilter { limit: 8, ..all() });
        assert_eq!((first.lines.len(), first.has_more), (8, false));
        assert_eq!(first.oldest.unwrap(), "2026-01-01T00:00:00.000Z");
        assert!(ring.lines(&dev, &AuditFilter { limit: 7, ..all() }).has_more);
    }

    #[test]
    fn successful_questions_about_own_rights_are_left_out() {
        let ring = AuditRing::default();
        let review = "/agents/prod/kubernetes/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        for (second, path, status) in [
            (0, review, 201),
            (1, &*format!("{review}?pretty=true"), 201),
            (2, review, 403),
            (
                3,
                "/agents/prod/kubernetes/apis/apps/v1/namespaces/a/deployments/selfsubjectaccessreviews",
                200,
            ),
            (4, "/agents/prod/kubernetes/apis/authorization.k8s.io/v1/subjectaccessreviews", 201),
        ] {
            let mut line = line(second, "dev");
            line["path"] = path.into();
            line["status"] = status.into();
            ring.push(line.to_string().as_bytes());
        }
        let mut cancelled = line(5, "dev");
        cancelled["path"] = review.into();
        cancelled.as_object_mut().unwrap().remove("status");
        ring.push(cancelled.to_string().as_bytes());
        let without_reviews = AuditFilter { without_reviews: true, ..AuditFilter::default() };
        assert_eq!(found(&ring, &Reader::Auditor, without_reviews), ["04", "03", "02"]);
        assert_eq!(found(&ring, &Reader::Auditor, AuditFilter::default()).len(), 6);
        let of_before: AuditFilter = serde_json::from_value(json!({"limit": 7})).unwrap();
        assert!(!of_before.without_reviews, "a replica of the version before asks for all lines");
    }

    #[test]
    fn oldest_lines_leave_first() {
        let ring = AuditRing::default();
        let first = line(0, "dev").to_string();
        ring.push(first.as_bytes());
        for _ in 0..MAX_ENTRIES {
            ring.push(line(1, "dev").to_string().as_bytes());
        }
        assert_eq!(ring.0.lock().lines.len(), MAX_ENTRIES);
        assert_eq!(
            ring.lines(&Reader::Auditor, &AuditFilter::default()).oldest.unwrap(),
            "2026-01-01T00:00:01.000Z"
        );
        ring.push(&vec![b'x'; MAX_BYTES - 1000]);
        let ring = ring.0.lock();
        assert!(ring.bytes <= MAX_BYTES && ring.lines.len() < 20, "{} lines", ring.lines.len());
        assert_eq!(ring.bytes, ring.lines.iter().map(|line| line.len()).sum::<usize>());
    }
}
