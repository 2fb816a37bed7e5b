//! The facts about one request, from its head to the line that is written when its response has ended.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::SystemTime,
};

use access::{CallerNames, RequestError};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use ipnet::IpNet;
use percent_encoding::percent_decode_str;
use proto::{AgentName, Reason, audit::CiJob, header::AUDIT_ID};
use serde::{Serialize, Serializer};
use telemetry::TraceId;
use tokio::time::Instant;

use super::{
    AuditLog,
    event::{self, AuditEvent, AuditedAccess},
    strangers::LeftOut,
};

/// The most bytes of the method, the path and the message of a refused request.
const MAX_REFUSED: usize = 512;

const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");
const IMPERSONATE_UID: HeaderName = HeaderName::from_static("impersonate-uid");
const IMPERSONATE_GROUP: HeaderName = HeaderName::from_static("impersonate-group");
const IMPERSONATE_EXTRA: &str = "impersonate-extra-";

/// The facts about one request. The line is written when the record is dropped, unless it was written before.
#[derive(Debug)]
pub struct AuditRecord {
    log: AuditLog,
    time: SystemTime,
    started: Instant,
    id: HeaderValue,
    trace: Option<TraceId>,
    client: IpAddr,
    method: Method,
    host: Option<Box<str>>,
    uri: Uri,
    access: Option<AuditedAccess>,
    identity: ImpersonatedIdentity,
    status: Option<StatusCode>,
    error: Option<(Reason, String)>,
    /// The user of GitLab whose job the caller is.
    job_user: Option<Box<str>>,
    /// The caller of a request without access to one agent: one that was refused in spite of a valid credential, or that reads all agents.
    names: Option<Box<CallerNames>>,
    /// The caller asks for all of its agents.
    lists: bool,
    cluster_audit_id: Option<HeaderValue>,
    bytes: Arc<ByteCounts>,
    written: bool,
}

/// A request whose head has arrived.
#[derive(Debug)]
pub struct NewRequest<'a> {
    /// Identifies the request in the response and in all logs.
    pub id: &'a HeaderValue,
    /// The address of the caller.
    pub client: IpAddr,
    /// The method.
    pub method: &'a Method,
    /// The host of the request, if it names the agent.
    pub host: Option<&'a str>,
    /// The URI as the caller sent it.
    pub uri: &'a Uri,
}

/// The bytes of bodies, or of the raw streams after an upgrade.
#[derive(Debug, Default)]
pub struct ByteCounts {
    request: AtomicU64,
    response: AtomicU64,
}

/// The user that the cluster sees in place of agentk.
#[derive(Debug, Default)]
struct ImpersonatedIdentity {
    user: Option<HeaderValue>,
    uid: Option<HeaderValue>,
    groups: Vec<HeaderValue>,
    /// The headers of the further attributes.
    extra: Vec<(HeaderName, HeaderValue)>,
}

/// One line. `docs/audit.md` describes the fields.
#[derive(Default, Serialize)]
struct AuditLine<'a> {
    time: String,
    events: &'a [AuditEvent],
    request_id: Option<Text<'a>>,
    trace_id: Option<String>,
    replica: &'a str,
    client: Option<Client>,
    caller: Option<&'a str>,
    user: Option<&'a str>,
    job: Option<&'a CiJob>,
    impersonated_user: Option<Text<'a>>,
    impersonated_uid: Option<Text<'a>>,
    impersonated_groups: Vec<Text<'a>>,
    impersonated_extra: BTreeMap<String, Vec<Text<'a>>>,
    agent_id: Option<u64>,
    agent: Option<&'a str>,
    service: Option<&'a str>,
    verb: Option<&'a str>,
    method: Option<Cow<'a, str>>,
    host: Option<&'a str>,
    path: Option<Cow<'a, str>>,
    decision: &'static str,
    reason: Option<&'static str>,
    message: Option<Cow<'a, str>>,
    status: Option<u16>,
    request_bytes: u64,
    response_bytes: u64,
    duration_ms: Option<f64>,
    cluster_audit_id: Option<Text<'a>>,
    left_out: Option<u64>,
}

/// An address, or the network that limits count as one client. An address has no prefix length.
struct Client(IpNet);

/// The value of a header. Bytes that are not UTF-8 are replaced.
struct Text<'a>(&'a HeaderValue);

impl ImpersonatedIdentity {
    /// Returns the further attributes by their decoded keys.
    fn extra(&self) -> BTreeMap<String, Vec<Text<'_>>> {
        let mut extra = BTreeMap::<_, Vec<_>>::new();
        for (name, value) in &self.extra {
            let key = name.as_str().strip_prefix(IMPERSONATE_EXTRA).unwrap_or_default();
            let key = percent_decode_str(key).decode_utf8_lossy().into_owned();
            extra.entry(key).or_default().push(Text(value));
        }
        extra
    }
}

impl From<IpAddr> for Client {
    fn from(address: IpAddr) -> Self {
        Self(address.into())
    }
}

impl Serialize for Client {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(network) = self;
        if network.prefix_len() == network.max_prefix_len() {
            serializer.collect_str(&network.addr())
        } else {
            serializer.collect_str(network)
        }
    }
}

impl Serialize for Text<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&String::from_utf8_lossy(self.0.as_bytes()))
    }
}

impl ByteCounts {
    /// Counts bytes from the caller.
    pub(crate) fn add_request(&self, bytes: usize) {
        self.request.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts bytes to the caller.
    pub(crate) fn add_response(&self, bytes: usize) {
        self.response.fetch_add(bytes as u64, Relaxed);
    }
}

impl AuditRecord {
    /// Begins the record of a request.
    pub fn new(log: &AuditLog, request: NewRequest<'_>) -> Self {
        Self {
            log: log.clone(),
            time: SystemTime::now(),
            started: Instant::now(),
            id: request.id.clone(),
            trace: None,
            client: request.client,
            method: request.method.clone(),
            host: request.host.map(Box::from),
            uri: request.uri.clone(),
            access: None,
            identity: ImpersonatedIdentity::default(),
            status: None,
            error: None,
            job_user: None,
            names: None,
            lists: false,
            cluster_audit_id: None,
            bytes: Arc::default(),
            written: false,
        }
    }

    /// Returns the counters of the request.
    pub(crate) fn bytes(&self) -> Arc<ByteCounts> {
        Arc::clone(&self.bytes)
    }

    /// Adds the result of authorization.
    pub fn set_access(&mut self, access: AuditedAccess, trace: Option<TraceId>) {
        self.access = Some(access);
        self.trace = trace;
    }

    /// Adds the user of GitLab whose job the caller is.
    pub fn set_user(&mut self, user: &str) {
        self.job_user = Some(user.into());
    }

    /// Adds the identity in the cluster, and the id of the request there, from the headers of the request to the agent.
    pub(crate) fn set_identity(&mut self, headers: &HeaderMap) {
        self.cluster_audit_id = headers.get(AUDIT_ID).cloned();
        self.identity = ImpersonatedIdentity {
            user: headers.get(IMPERSONATE_USER).cloned(),
            uid: headers.get(IMPERSONATE_UID).cloned(),
            groups: headers.get_all(IMPERSONATE_GROUP).iter().cloned().collect(),
            extra: headers
                .iter()
                .filter(|(name, _)| name.as_str().starts_with(IMPERSONATE_EXTRA))
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
        };
    }

    /// Adds the status of the response.
    pub fn set_response(&mut self, status: StatusCode) {
        self.status = Some(status);
    }

    /// Adds the caller that asks for all of its agents. The line is written whatever the response is.
    pub(crate) fn set_agent_list(&mut self, names: CallerNames, trace: Option<TraceId>) {
        self.names = Some(Box::new(names));
        self.lists = true;
        self.trace = trace;
    }

    /// Adds the error that the caller receives, and writes the line.
    pub fn refuse(&mut self, error: &RequestError, trace: Option<TraceId>) {
        self.status = Some(error.reason.status());
        self.error = Some((error.reason, error.message.clone()));
        self.names = error.caller.clone();
        self.trace = trace;
        self.write();
    }

    fn write(&mut self) {
        if self.written {
            return;
        }
        self.written = true;
        let status = self.status.map(|status| status.as_u16());
        let reason = self.error.as_ref().map(|(reason, _)| *reason);
        let refusal = status.is_some_and(|status| event::is_refusal(status, reason));
        let mut events = self.access.as_ref().map(AuditEvent::of).unwrap_or_default();
        if self.lists {
            events.push(AuditEvent::AgentList);
        }
        if refusal {
            events.push(AuditEvent::Refusal);
        }
        if events.is_empty() {
            return;
        }
        let stranger = self.access.is_none() && self.names.is_none();
        if stranger && !self.log.strangers.admit(self.client) {
            self.log.metrics.left_out.inc();
            return;
        }
        self.log.send(self.line(&events, status, refusal.then_some(reason.is_some())));
    }

    /// Returns the names of the caller and of its user, as far as they are known.
    fn caller(&self) -> (Option<&str>, Option<&str>) {
        match (&self.access, &self.names) {
            (Some(access), _) => {
                let user = access.grant.caller.user.as_deref().or(self.job_user.as_deref());
                (Some(access.grant.caller.name()), user)
            }
            (None, Some(names)) => (Some(&names.name), names.user.as_deref()),
            (None, None) => (None, None),
        }
    }

    /// Returns the line. `refusal` is whether kas or agentk refused the request, and not the cluster.
    fn line(&self, events: &[AuditEvent], status: Option<u16>, refusal: Option<bool>) -> Vec<u8> {
        // Refused requests must not fill the files.
        let shown = |text| if refusal.is_some() { cut(text) } else { Cow::Borrowed(text) };
        let (caller, user) = self.caller();
        let destination = self.access.as_ref().map(|access| &access.destination);
        let line = AuditLine {
            time: humantime::format_rfc3339_millis(self.time).to_string(),
            events,
            request_id: Some(Text(&self.id)),
            trace_id: self.trace.map(|trace| trace.to_string()),
            replica: &self.log.replica,
            client: Some(self.client.into()),
            caller,
            user,
            job: self.access.as_ref().and_then(|access| access.grant.caller.job.as_deref()),
            impersonated_user: self.identity.user.as_ref().map(Text),
            impersonated_uid: self.identity.uid.as_ref().map(Text),
            impersonated_groups: self.identity.groups.iter().map(Text).collect(),
            impersonated_extra: self.identity.extra(),
            agent_id: destination.map(|destination| destination.agent.0),
            agent: destination.and_then(|destination| destination.name.as_ref()).map(AgentName::as_str),
            service: destination.map(|destination| destination.service.as_str()),
            verb: self.access.as_ref().map(|access| &*access.operation.verb),
            method: Some(shown(self.method.as_str())),
            host: self.host.as_deref(),
            path: Some(shown(self.uri.path())),
            decision: if refusal == Some(true) { "deny" } else { "allow" },
            reason: self.error.as_ref().map(|(reason, _)| reason.as_str()),
            // Messages about later failures may come from the agent, which has seen the query and the body.
            message: self.error.as_ref().filter(|_| self.access.is_none()).map(|(_, message)| shown(message)),
            status,
            request_bytes: self.bytes.request.load(Relaxed),
            response_bytes: self.bytes.response.load(Relaxed),
            duration_ms: Some(self.started.elapsed().as_micros() as f64 / 1000.0),
            cluster_audit_id: self.cluster_audit_id.as_ref().map(Text),
            left_out: None,
        };
        line.encode()
    }
}

impl AuditLine<'_> {
    fn encode(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).expect("texts and numbers are serializable");
        line.push(b'\n');
        line
    }
}

/// Returns the line with the number of refusals of strangers that have no line.
pub(super) fn left_out_line(replica: &str, left_out: LeftOut) -> Vec<u8> {
    let line = AuditLine {
        time: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
        events: &[AuditEvent::LeftOut],
        replica,
        client: left_out.client.map(Client),
        decision: "deny",
        left_out: Some(left_out.count),
        ..AuditLine::default()
    };
    line.encode()
}

/// Returns the beginning of a longer text, with its length.
fn cut(text: &str) -> Cow<'_, str> {
    if text.len() <= MAX_REFUSED {
        return Cow::Borrowed(text);
    }
    let end = text.floor_char_boundary(MAX_REFUSED);
    Cow::Owned(format!("{}… ({} bytes)", &text[..end], text.len()))
}

impl Drop for AuditRecord {
    fn drop(&mut self) {
        self.write();
    }
}
