//! `GET /web/v1/audit` and `GET /web/v1/requests/<id>`: the recent entries of all replicas that the caller may see.

use std::{future::ready, sync::Arc};

use access::Grant;
use axum::body::Body;
use futures_util::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use humantime::format_rfc3339_millis;
use percent_encoding::percent_decode_str;
use proto::ReplicaId;
use router::RequestPermit;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use settings::rfc3339;
use url::form_urlencoded;

use super::{
    MAX_ENTRIES, Question, Reader, Recent, Subject,
    audit_lines::{AuditFilter, AuditLines, AuditOutcome, fields},
    requests::{RequestAnswer, RequestView},
};
use crate::{
    WebServer,
    response::{json, refusal, wrong_method},
};
use kas_core::{
    peers::{PeerHeader, PeerHooks},
    proxy::CallerBody,
    tunnel_entry::TunnelEntry,
};

const AUDIT_PATH: &str = "/web/v1/audit";
const REQUESTS_PREFIX: &str = "/web/v1/requests/";
/// The longest id of a request, as in its response.
const MAX_ID: usize = 64;
/// The longest value of a filter, in bytes.
const MAX_VALUE: usize = 256;
/// The most lines of a response, and those without a limit in the query.
const MAX_LINES: usize = 500;
const DEFAULT_LINES: usize = 100;

/// The lines of the audit log, for the page.
#[derive(Serialize)]
struct AuditInfo {
    /// The lines, the newest one first.
    lines: Vec<Box<RawValue>>,
    /// There are older lines that the filter selects.
    has_more: bool,
    /// kas writes an audit log.
    enabled: bool,
    /// The caller may see the lines of all callers.
    auditor: bool,
    /// The time of the oldest line that each replica keeps.
    replicas: Vec<ReplicaAge>,
    missing: Vec<MissingReplica>,
}

#[derive(Serialize)]
struct ReplicaAge {
    replica: ReplicaId,
    oldest: Option<String>,
}

/// The requests with an id, for the page.
#[derive(Serialize)]
struct RequestInfo {
    /// The replica that has received the question.
    replica: ReplicaId,
    /// The requests, the newest one first.
    requests: Vec<RequestView>,
    /// The number of requests that each replica keeps.
    kept: usize,
    missing: Vec<MissingReplica>,
}

/// A replica whose entries are missing.
#[derive(Serialize)]
struct MissingReplica {
    replica: ReplicaId,
    error: String,
}

/// Answers other replicas for the page, if this replica serves it.
#[derive(Debug)]
pub(crate) struct RecentAnswers(pub(crate) Option<Arc<Recent>>);

impl PeerHooks for RecentAnswers {
    fn answer(&self, question: &str) -> Option<BoxFuture<'_, Result<String, &'static str>>> {
        let question = serde_json::from_str(question).ok()?;
        let recent = self.0.as_ref().ok_or("it does not serve the web page");
        Some(Box::pin(ready(recent.map(|recent| recent.answer(&question)))))
    }

    fn on_relay(&self, id: &HeaderValue, request: &PeerHeader, tunnel: &RequestPermit<TunnelEntry>) {
        if let Some(recent) = &self.0 {
            let entry = (tunnel.tunnel(), tunnel.handle().hello());
            recent.requests.push_relay(id.clone(), request.from, request.agent, entry);
        }
    }
}

/// Returns whether this module responds to requests with this path.
pub(crate) fn is_path(path: &str) -> bool {
    path == AUDIT_PATH || path.starts_with(REQUESTS_PREFIX)
}

/// Responds to a request of a session with these rights.
pub(crate) async fn respond(web: &WebServer, request: &Request<CallerBody>, grant: &Grant) -> Response<Body> {
    if request.method() != Method::GET {
        return wrong_method("GET, HEAD");
    }
    let (uri, reader) = (request.uri(), Reader::of(&grant.caller));
    match uri.path().strip_prefix(REQUESTS_PREFIX) {
        Some(id) => match percent_decode_str(id).decode_utf8() {
            Ok(id) if (1..=MAX_ID).contains(&id.len()) => json(&find(web, reader, id.into_owned()).await),
            _ => refusal(StatusCode::BAD_REQUEST, "the id of a request has 1 to 64 characters"),
        },
        None => match filter(uri.query().unwrap_or_default()) {
            Ok(filter) => json(&audit(web, reader, filter).await),
            Err(error) => refusal(StatusCode::BAD_REQUEST, &error),
        },
    }
}

/// Returns the lines of all replicas.
async fn audit(web: &WebServer, reader: Reader, filter: AuditFilter) -> AuditInfo {
    let (auditor, limit) = (reader == Reader::Auditor, filter.limit);
    let question = Question { reader, subject: Subject::Audit(filter) };
    let (answers, missing) = ask_all::<AuditLines>(web, question).await;
    let (mut lines, mut replicas, mut has_more) = (Vec::new(), Vec::new(), false);
    for (replica, answer) in answers {
        replicas.push(ReplicaAge { replica, oldest: answer.oldest });
        has_more |= answer.has_more;
        lines.extend(answer.lines);
    }
    lines.sort_by_cached_key(|line| std::cmp::Reverse(time(line)));
    has_more |= lines.len() > limit;
    lines.truncate(limit);
    AuditInfo {
        lines,
        has_more,
        enabled: web.proxy.observers.audit.get().is_some(),
        auditor,
        replicas,
        missing,
    }
}

/// Returns the requests with an id, of all replicas.
async fn find(web: &WebServer, reader: Reader, id: String) -> RequestInfo {
    let question = Question { reader, subject: Subject::Request(id) };
    let (answers, missing) = ask_all::<RequestAnswer>(web, question).await;
    let (mut requests, mut relays) = (Vec::new(), Vec::new());
    for (_, answer) in answers {
        requests.extend(answer.requests);
        relays.extend(answer.relays);
    }
    for request in &mut requests {
        if request.tunnel.is_none() {
            let relay = relays.iter().find(|relay| {
                relay.from == request.replica
                    && Some(relay.replica) == request.holder
                    && Some(relay.agent_id) == request.agent_id
            });
            request.tunnel = relay.map(|relay| relay.tunnel.clone());
        }
    }
    requests.sort_by_key(|request| std::cmp::Reverse(request.time));
    RequestInfo { replica: web.replica, requests, kept: MAX_ENTRIES, missing }
}

/// Asks this replica and all other ones.
async fn ask_all<T: DeserializeOwned>(
    web: &WebServer,
    question: Question,
) -> (Vec<(ReplicaId, T)>, Vec<MissingReplica>) {
    let others = web.proxy.forwarder.peers.ask_all::<T>(&*web.store, &question).await;
    let (mut answers, mut missing) = (Vec::new(), Vec::new());
    for (replica, answer) in others {
        match answer {
            Ok(answer) => answers.push((replica.id, answer)),
            Err(error) => missing.push(MissingReplica { replica: replica.id, error: error.to_string() }),
        }
    }
    let own = serde_json::from_str(&web.recent.answer(&question)).ok();
    answers.extend(own.map(|own| (web.replica, own)));
    (answers, missing)
}

/// Returns the time of a line.
fn time(line: &RawValue) -> Option<String> {
    fields(line.get().as_bytes()).map(|fields| fields.time.to_owned())
}

/// Parses the query of the audit log.
fn filter(query: &str) -> Result<AuditFilter, String> {
    let mut filter = AuditFilter { limit: DEFAULT_LINES, ..AuditFilter::default() };
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        if value.is_empty() {
            continue;
        }
        if value.len() > MAX_VALUE {
            return Err(format!("{key} has at most {MAX_VALUE} bytes"));
        }
        let text = || Some(value.clone().into_owned());
        match &*key {
            "agent" => filter.agent = text(),
            "caller" => filter.caller = text(),
            "verb" => filter.verb = text(),
            "result" => {
                filter.outcome = Some(match &*value {
                    "allow" => AuditOutcome::Allow,
                    "deny" => AuditOutcome::Deny,
                    "failed" => AuditOutcome::Failed,
                    _ => return Err("result is allow, deny or failed".to_owned()),
                });
            }
            "reviews" => {
                filter.without_reviews = match &*value {
                    "true" => false,
                    "false" => true,
                    _ => return Err("reviews is true or false".to_owned()),
                };
            }
            "from" => filter.from = Some(parse_time(&value)?),
            "to" => filter.to = Some(parse_time(&value)?),
            "limit" => {
                let limit = value.parse().ok().filter(|limit| (1..=MAX_LINES).contains(limit));
                filter.limit = limit.ok_or_else(|| format!("limit is a number from 1 to {MAX_LINES}"))?;
            }
            _ => {
                let known = "agent, caller, verb, result, reviews, from, to and limit";
                return Err(format!("the parameters are {known}"));
            }
        }
    }
    Ok(filter)
}

/// Returns a time in the form of the lines.
fn parse_time(text: &str) -> Result<String, String> {
    // The `+` of an offset that was not encoded.
    let time = rfc3339::parse(&text.replace(' ', "+"));
    let time = time.ok_or_else(|| format!("{text:?} is no time like 2026-01-31T12:00:00Z"))?;
    Ok(format_rfc3339_millis(time).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_is_parsed_or_refused() {
        let parsed = filter(
            "agent=prod&caller=a+b%2Fc&verb=&result=deny&reviews=false&from=2026-01-31T12:00:00Z&limit=7",
        )
        .unwrap();
        let text = |text: &str| Some(text.to_owned());
        let expected = AuditFilter {
            agent: text("prod"),
            caller: text("a b/c"),
            verb: None,
            outcome: Some(AuditOutcome::Deny),
            from: text("2026-01-31T12:00:00.000Z"),
            to: None,
            without_reviews: true,
            limit: 7,
        };
        assert_eq!(parsed, expected);
        assert_eq!(filter("").unwrap().limit, DEFAULT_LINES);
        for (query, part) in [
            ("limit=0", "from 1 to 500"),
            ("limit=501", "from 1 to 500"),
            ("result=no", "allow, deny or failed"),
            ("reviews=no", "true or false"),
            ("to=yesterday", "is no time"),
            ("who=me", "the parameters are"),
            (&format!("agent={}", "x".repeat(257)), "at most 256"),
        ] {
            assert!(filter(query).unwrap_err().contains(part), "{query}");
        }
    }
}
