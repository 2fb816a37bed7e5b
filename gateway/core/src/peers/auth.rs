//! Authentication of requests between replicas with the shared secret.
//!
//! The MAC of a request covers all that decides its effect: sender and receiver, the URL that the sender has dialed, agent, service,
//! method, path, time, sequence number, and the headers that decide about identity. A replica accepts requests to its own URL only,
//! so that nobody can stand between two replicas by changing a URL in the route store. The MAC does not cover other headers and the
//! body, and it hides nothing: TLS is for that.
//! A signed request is valid for a few seconds, and accepted once.

use std::{collections::HashMap, time::Duration};

use hmac::Mac as _;
use http::{
    HeaderMap, HeaderName, Method, Request, Uri,
    header::{AUTHORIZATION, COOKIE},
};
use parking_lot::Mutex;
use proto::{ReplicaId, ServiceName, header};
use settings::Secret;
use store::Replica;
use tokio::time::Instant;

use super::header::{Mac, PEER_HEADER, PeerHeader, now_ms};
use crate::metrics::ServedResult;

/// The largest age of a request, and the largest lead of its sender's clock. Replicas in one place can be expected to agree
/// within it.
pub(super) const CLOCK_TOLERANCE: Duration = Duration::from_secs(5);

/// The sequence numbers in the window of a sender: more than the fastest sender uses in two seconds.
const WINDOW_SIZE: u64 = 1 << 16;

/// The time after which all requests of a sender have expired.
const WINDOW_TTL: Duration = CLOCK_TOLERANCE.saturating_mul(2);

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

/// The sequence numbers that were received from each sender: each is accepted once.
///
/// As in IPsec (RFC 4303 section 3.4.3), the receiver has a window for each sender that ends at the highest sequence number
/// received, with one bit for each number. Requests may overtake one another within the window; older numbers are refused. A
/// window is created only for requests with a valid MAC, so that strangers cannot use up memory, and it is deleted once all
/// requests of its sender have expired.
#[derive(Debug, Default)]
struct ReplayFilter(HashMap<ReplicaId, ReplayWindow>);

/// The newest sequence numbers of one sender: a ring of bits.
#[derive(Debug)]
struct ReplayWindow {
    highest: u64,
    bits: Vec<u64>,
    last: Instant,
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

impl ReplayFilter {
    /// Returns true if the sequence number is new, and marks it as used.
    fn insert(&mut self, sender: ReplicaId, sequence: u64, now: Instant) -> bool {
        if !self.0.contains_key(&sender) {
            self.0.retain(|_, window| now.saturating_duration_since(window.last) <= WINDOW_TTL);
        }
        let window = self.0.entry(sender).or_insert_with(|| ReplayWindow::new(sequence, now));
        window.last = now;
        window.insert(sequence)
    }
}

impl ReplayWindow {
    fn new(sequence: u64, now: Instant) -> Self {
        Self { highest: sequence, bits: vec![0; (WINDOW_SIZE / 64) as usize], last: now }
    }

    fn insert(&mut self, sequence: u64) -> bool {
        if sequence > self.highest {
            // The bits of numbers that leave the window become those of the numbers that enter it.
            let first = (self.highest + 1).max(sequence.saturating_sub(WINDOW_SIZE - 1));
            for entering in first..=sequence {
                *self.word(entering) &= !bit(entering);
            }
            self.highest = sequence;
        } else if self.highest - sequence >= WINDOW_SIZE {
            return false;
        }

        let word = self.word(sequence);
        let new = *word & bit(sequence) == 0;
        *word |= bit(sequence);
        new
    }

    fn word(&mut self, sequence: u64) -> &mut u64 {
        &mut self.bits[(sequence % WINDOW_SIZE / 64) as usize]
    }
}

const fn bit(sequence: u64) -> u64 {
    1 << (sequence % 64)
}

#[cfg(test)]
mod tests;
