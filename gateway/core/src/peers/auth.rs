//! Authentication of requests between replicas with the shared secret.
//!
//! The MAC of a request covers all that decides its effect: sender and receiver, the URL that the sender has dialed, agent, service,
//! method, path, time, sequence number, and the headers that decide about identity. A replica accepts requests to its own URL only,
//! so that nobody can stand between two replicas by changing a URL in the route store. The MAC does not cover other headers and the
//! body, and it hides nothing: TLS is for that.
//! A signed request is valid for a few seconds, and [`replay`] accepts it once.

mod replay;

use std::time::Duration;

use hmac::Mac as _;
use http::{
    HeaderMap, HeaderName, Method, Request, Uri,
    header::{AUTHORIZATION, COOKIE},
};
use parking_lot::Mutex;
use proto::{ServiceName, header};
use settings::Secret;
use store::Replica;
use tokio::time::Instant;

use self::replay::ReplayFilter;
use super::header::{Mac, PEER_HEADER, PeerHeader, now_ms};
use crate::metrics::ServedResult;

/// The largest age of a request, and the largest lead of its sender's clock. Replicas in one place can be expected to agree
/// within it.
pub(super) const CLOCK_TOLERANCE: Duration = Duration::from_secs(5);

/// The parts of a request that its MAC covers.
#[derive(Clone, Copy, Debug)]
pub struct SignedRequest<'a> {
    /// The header; its MAC is not covered.
    pub header: &'a PeerHeader,
    /// The replica that the request is for, with the URL that the sender has dialed.
    pub to: &'a Replica,
    /// The service of the agent.
    pub service: &'a str,
    /// The method of the request.
    pub method: &'a Method,
    /// The target of the request; its path and query are covered.
    pub uri: &'a Uri,
    /// The headers of the request; those that decide about identity are covered.
    pub headers: &'a HeaderMap,
}

/// Signs and verifies the response to one request.
#[derive(Clone, Copy, Debug)]
pub struct ResponseKey<'a> {
    secret: &'a Secret,
    request_mac: &'a Mac,
}

/// Verifies requests of other replicas.
#[derive(Debug)]
pub(super) struct RequestVerifier {
    own: Replica,
    secret: Option<Secret>,
    replays: Mutex<ReplayFilter>,
}

/// The header and the service of a request that another replica sent.
pub(super) struct VerifiedRequest {
    pub(super) header: PeerHeader,
    pub(super) service: ServiceName,
}

/// The reason why a request is not accepted as that of another replica.
pub(super) enum VerifyError {
    /// A header is missing or malformed.
    Malformed,
    /// The request has no MAC, or one that is not valid.
    InvalidMac,
    /// The MAC is valid, but the request was not sent now by this replica's clock.
    Expired { header: PeerHeader, now_ms: u64 },
    /// The MAC is valid, but a request with this sequence number was accepted before.
    Replayed,
}

impl SignedRequest<'_> {
    /// Computes the MAC with the first key of the secret.
    pub fn sign(self, secret: &Secret) -> Mac {
        Mac(secret.keys().signing().hmac().chain_update(self.to_bytes()).finalize().into_bytes().into())
    }

    /// Returns true if the MAC of the header was computed with one of the keys. Takes constant time for each key.
    pub fn verify(self, secret: &Secret) -> bool {
        let Some(mac) = &self.header.mac else { return false };
        let text = self.to_bytes();
        secret.keys().iter().any(|key| key.hmac().chain_update(&text).verify_slice(&mac.0).is_ok())
    }

    /// Returns the bytes that the MAC covers, in one piece with the fields of fixed length first.
    fn to_bytes(self) -> Vec<u8> {
        let path = self.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut text = Vec::with_capacity(160 + path.len());
        text.extend_from_slice(b"kas peer request v2");
        text.extend_from_slice(&self.header.content());
        text.extend_from_slice(&self.to.id.to_bytes());
        append(&mut text, [&*self.to.url, self.service, self.method.as_str(), path]);
        for (name, value) in identity_headers(self.headers) {
            append(&mut text, [name.as_str().as_bytes(), value]);
        }
        text
    }
}

/// Returns the headers that decide as whom the cluster executes a request, and under which id it is in the audit log, in the order of
/// their names.
fn identity_headers(headers: &HeaderMap) -> Vec<(&HeaderName, &[u8])> {
    let decides = |name: &HeaderName| {
        ["impersonate-", "x-remote-", "x-forwarded-"].iter().any(|prefix| name.as_str().starts_with(prefix))
            || [AUTHORIZATION, COOKIE, header::REQUEST_ID].contains(name)
    };
    let covered = headers.iter().filter(|(name, _)| decides(name));
    let mut covered: Vec<_> = covered.map(|(name, value)| (name, value.as_bytes())).collect();
    // The order of different names is not kept on the way. A stable sort keeps that of the values of one name.
    covered.sort_by_key(|(name, _)| name.as_str());
    covered
}

impl<'a> ResponseKey<'a> {
    /// Creates the key for the response to the request with this MAC, or `None` if the replicas share no secret.
    pub fn new(secret: Option<&'a Secret>, request_mac: Option<&'a Mac>) -> Option<Self> {
        Some(Self { secret: secret?, request_mac: request_mac? })
    }

    /// Computes the MAC of a response with the first key of the secret.
    pub(super) fn sign(&self, response: &[&str]) -> Mac {
        let text = self.to_bytes(response);
        Mac(self.secret.keys().signing().hmac().chain_update(text).finalize().into_bytes().into())
    }

    /// Returns true if the MAC of the response was computed with one of the keys. Takes constant time for each key.
    pub(super) fn verify(&self, response: &[&str], mac: &Mac) -> bool {
        let text = self.to_bytes(response);
        self.secret.keys().iter().any(|key| key.hmac().chain_update(&text).verify_slice(&mac.0).is_ok())
    }

    fn to_bytes(self, response: &[&str]) -> Vec<u8> {
        let mut text = b"kas peer answer v1".to_vec();
        text.extend_from_slice(&self.request_mac.0);
        append(&mut text, response);
        text
    }
}

/// Appends strings with their lengths, so that no two lists result in the same bytes.
pub(super) fn append(text: &mut Vec<u8>, parts: impl IntoIterator<Item = impl AsRef<[u8]>>) {
    for part in parts {
        let part = part.as_ref();
        text.extend_from_slice(&(part.len() as u64).to_be_bytes());
        text.extend_from_slice(part);
    }
}

/// Returns true if a request that was sent at `sent_ms` may be accepted at `now_ms`, both in milliseconds since 1970.
fn is_within_tolerance(sent_ms: u64, now_ms: u64) -> bool {
    u128::from(sent_ms.abs_diff(now_ms)) <= CLOCK_TOLERANCE.as_millis()
}

impl RequestVerifier {
    /// Creates the verifier of the replica `own`. Without a secret it accepts every well-formed header: then TLS, or a listener on
    /// loopback, keeps strangers out.
    pub(super) fn new(own: Replica, secret: Option<Secret>) -> Self {
        Self { own, secret, replays: Mutex::default() }
    }

    /// Returns the secret of all replicas.
    pub(super) fn secret(&self) -> Option<&Secret> {
        self.secret.as_ref()
    }

    /// Verifies the headers of a request, and marks its sequence number as used.
    pub(super) fn verify<B>(&self, request: &Request<B>) -> Result<VerifiedRequest, VerifyError> {
        let headers = request.headers();
        let service = headers.get(header::SERVICE).and_then(|service| service.to_str().ok()?.parse().ok());
        let service: ServiceName = service.ok_or(VerifyError::Malformed)?;
        let header = headers.get(PEER_HEADER).ok_or(VerifyError::Malformed)?;
        let header = PeerHeader::decode(header).map_err(|_| VerifyError::Malformed)?;
        if let Some(secret) = &self.secret {
            let (method, uri) = (request.method(), request.uri());
            let (to, service) = (&self.own, service.as_str());
            let signed = SignedRequest { header: &header, to, service, method, uri, headers };
            if !signed.verify(secret) {
                return Err(VerifyError::InvalidMac);
            }
            let now_ms = now_ms();
            if !is_within_tolerance(header.sent_ms, now_ms) {
                return Err(VerifyError::Expired { header, now_ms });
            }
            if !self.replays.lock().insert(header.from, header.sequence, Instant::now()) {
                return Err(VerifyError::Replayed);
            }
        }
        Ok(VerifiedRequest { header, service })
    }
}

impl VerifyError {
    /// Returns the label of the metric.
    pub(super) fn result(&self) -> ServedResult {
        match self {
            Self::Malformed => ServedResult::Malformed,
            Self::InvalidMac => ServedResult::InvalidMac,
            Self::Expired { .. } => ServedResult::Expired,
            Self::Replayed => ServedResult::Replayed,
        }
    }
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    use http::HeaderValue;
    use proto::{AgentId, ReplicaId};
    use router::RequestClass;

    use super::{super::header::PeerRequestKind, *};

    fn secret(byte: u8) -> Secret {
        Secret::parse(&BASE64_STANDARD.encode([byte; 32])).unwrap()
    }

    fn replica(id: ReplicaId) -> Replica {
        Replica { id, url: "http://b:8155".to_owned() }
    }

    fn headers(headers: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value));
        headers.iter().map(pair).collect()
    }

    fn header() -> PeerHeader {
        PeerHeader {
            kind: PeerRequestKind::Forward,
            from: ReplicaId::from_bytes([0xab; 16]),
            agent: AgentId(1),
            class: RequestClass::Short,
            sent_ms: 1000,
            sequence: 1,
            mac: None,
        }
    }

    #[test]
    fn changed_request_has_an_invalid_mac() {
        let (from, to) = (ReplicaId::random(), replica(ReplicaId::random()));
        let (method, uri) = (Method::POST, Uri::from_static("/api/v1/pods?limit=1"));
        let headers =
            headers(&[("impersonate-user", "alice"), ("impersonate-group", "a"), ("impersonate-group", "b")]);
        let mut header = PeerHeader {
            kind: PeerRequestKind::Forward,
            from,
            agent: AgentId(1),
            class: RequestClass::Short,
            sent_ms: 1000,
            sequence: 1,
            mac: None,
        };
        let (to, headers, method, uri) = (&to, &headers, &method, &uri);
        let request = SignedRequest { header: &header, to, service: "kubernetes", method, uri, headers };
        assert!(!request.verify(&secret(1)), "no MAC");
        header.mac = Some(request.sign(&secret(1)));
        let request = SignedRequest { header: &header, to, service: "kubernetes", method, uri, headers };
        assert!(request.verify(&secret(1)));
        assert!(!request.verify(&secret(2)), "another secret");

        let other = Uri::from_static("/api/v1/pods?limit=2");
        for (part, changed) in [
            ("receiver", SignedRequest { to: &replica(from), ..request }),
            ("URL", SignedRequest { to: &Replica { url: "http://c:8155".into(), ..to.clone() }, ..request }),
            ("service", SignedRequest { service: "prometheus", ..request }),
            ("method", SignedRequest { method: &Method::DELETE, ..request }),
            ("path", SignedRequest { uri: &other, ..request }),
        ] {
            assert!(!changed.verify(&secret(1)), "{part}");
        }
        for (field, changed) in [
            ("kind", PeerHeader { kind: PeerRequestKind::Probe, ..header.clone() }),
            ("from", PeerHeader { from: to.id, ..header.clone() }),
            ("agent", PeerHeader { agent: AgentId(2), ..header.clone() }),
            ("class", PeerHeader { class: RequestClass::Streaming, ..header.clone() }),
            ("sent_ms", PeerHeader { sent_ms: 1001, ..header.clone() }),
            ("sequence", PeerHeader { sequence: 2, ..header.clone() }),
        ] {
            assert!(!SignedRequest { header: &changed, ..request }.verify(&secret(1)), "{field}");
        }
    }

    #[test]
    fn mac_covers_the_headers_that_decide_about_identity() {
        let (to, uri) = (replica(ReplicaId::from_bytes([0xcd; 16])), Uri::from_static("/"));
        let header = header();
        let sign = |headers: &HeaderMap| {
            let (to, uri) = (&to, &uri);
            SignedRequest { header: &header, to, service: "kubernetes", method: &Method::GET, uri, headers }
                .sign(&secret(1))
        };
        let signed = [("impersonate-user", "alice"), ("impersonate-group", "a"), ("impersonate-group", "b")];
        let mac = sign(&headers(&signed));
        let other_order =
            [("impersonate-group", "a"), ("impersonate-user", "alice"), ("impersonate-group", "b")];
        assert_eq!(sign(&headers(&other_order)), mac);
        assert_eq!(sign(&headers(&[&signed[..], &[("accept", "*/*")]].concat())), mac, "others may change");
        for changed in [
            vec![("impersonate-user", "root"), signed[1], signed[2]],
            vec![signed[0], signed[2], signed[1]],
            vec![signed[0], signed[1]],
            vec![signed[0], ("impersonate-group", "ab")],
            vec![signed[0], signed[1], signed[2], ("impersonate-uid", "1")],
            vec![signed[0], signed[1], signed[2], ("impersonate-extra-scopes", "x")],
            vec![signed[0], signed[1], signed[2], ("authorization", "Bearer x")],
            vec![signed[0], signed[1], signed[2], ("x-request-id", "1")],
            vec![signed[0], signed[1], signed[2], ("x-forwarded-for", "192.0.2.1")],
            vec![signed[0], signed[1], signed[2], ("x-remote-user", "root")],
        ] {
            assert_ne!(sign(&headers(&changed)), mac, "{changed:?}");
        }
    }

    /// Replicas of two versions run side by side in a rolling update.
    #[test]
    fn macs_are_those_of_v2() {
        let header = header();
        let (to, uri) =
            (replica(ReplicaId::from_bytes([0xcd; 16])), Uri::from_static("/api/v1/pods?limit=1"));
        let (to, uri, headers) = (&to, &uri, &headers(&[("impersonate-user", "alice")]));
        let request =
            SignedRequest { header: &header, to, service: "kubernetes", method: &Method::POST, uri, headers };
        let first_bytes = |mac: Mac| u64::from_be_bytes(*mac.0.first_chunk().unwrap());
        assert_eq!(first_bytes(request.sign(&secret(1))), 0x53bb_a712_7232_0d84);
        let key = ResponseKey { secret: &secret(1), request_mac: &Mac([7; 32]) };
        assert_eq!(first_bytes(key.sign(&["holds", ""])), 0x1b72_59c5_f1bb_fd03);
    }

    #[test]
    fn response_is_valid_for_one_request() {
        let (secret, other, mac) = (secret(1), secret(2), Mac([1; 32]));
        let key = ResponseKey { secret: &secret, request_mac: &mac };
        let signed = key.sign(&["holds", ""]);
        assert!(key.verify(&["holds", ""], &signed));
        assert!(!key.verify(&["hold", "s"], &signed));
        assert!(!ResponseKey { request_mac: &Mac([2; 32]), ..key }.verify(&["holds", ""], &signed));
        assert!(!ResponseKey { secret: &other, ..key }.verify(&["holds", ""], &signed));
    }

    /// The three steps in which operators replace a key while replicas have different versions of the file.
    #[test]
    fn neighbouring_steps_of_a_key_rotation_trust_each_other() {
        let keys = |bytes: &[u8]| {
            let lines: Vec<_> = bytes.iter().map(|byte| BASE64_STANDARD.encode([*byte; 32])).collect();
            Secret::parse(&lines.join("\n")).unwrap()
        };
        let steps = [keys(&[1]), keys(&[1, 2]), keys(&[2, 1]), keys(&[2])];
        let request_mac = Mac([1; 32]);
        let trusts = |one: &Secret, other: &Secret| {
            let [one, other] = [one, other].map(|secret| ResponseKey { secret, request_mac: &request_mac });
            one.verify(&["holds", ""], &other.sign(&["holds", ""]))
        };
        for pair in steps.windows(2) {
            assert!(trusts(&pair[0], &pair[1]) && trusts(&pair[1], &pair[0]));
        }
        assert!(!trusts(&steps[0], &steps[3]) && !trusts(&steps[0], &steps[2]));
    }

    #[test]
    fn request_expires_after_five_seconds() {
        assert!(is_within_tolerance(10_000, 15_000) && is_within_tolerance(15_000, 10_000));
        assert!(!is_within_tolerance(10_000, 15_001) && !is_within_tolerance(15_001, 10_000));
        assert!(!is_within_tolerance(0, u64::MAX));
    }
}
