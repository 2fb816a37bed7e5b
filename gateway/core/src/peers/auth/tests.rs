use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::HeaderValue;
use proto::AgentId;
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
    let other_order = [("impersonate-group", "a"), ("impersonate-user", "alice"), ("impersonate-group", "b")];
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
    let (to, uri) = (replica(ReplicaId::from_bytes([0xcd; 16])), Uri::from_static("/api/v1/pods?limit=1"));
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

#[test]
fn sequence_number_is_accepted_once() {
    let (mut filter, now) = (ReplayFilter::default(), Instant::now());
    let (one, other) = (ReplicaId::random(), ReplicaId::random());
    for sequence in [5, 3, 4, 900, 64, 128, u64::MAX - 1, u64::MAX] {
        assert!(filter.insert(one, sequence, now), "{sequence}");
        assert!(!filter.insert(one, sequence, now), "{sequence} again");
    }
    assert!(filter.insert(other, 5, now));
}

#[test]
fn reordered_sequence_numbers_are_accepted_once() {
    let (mut filter, now, sender) = (ReplayFilter::default(), Instant::now(), ReplicaId::random());
    // An odd factor permutes the residues of a power of two.
    let order: Vec<u64> = (0..4096).map(|step| step * 1365 % 4096).collect();
    assert!(order.iter().all(|sequence| filter.insert(sender, *sequence, now)));
    assert!(!order.iter().any(|sequence| filter.insert(sender, *sequence, now)));
}

#[test]
fn sequence_number_before_the_window_is_refused() {
    let (mut filter, now, sender) = (ReplayFilter::default(), Instant::now(), ReplicaId::random());
    assert!(filter.insert(sender, 10 * WINDOW_SIZE, now));
    assert!(filter.insert(sender, 9 * WINDOW_SIZE + 1, now));
    assert!(!filter.insert(sender, 9 * WINDOW_SIZE, now));
    // The same bit of the ring, one round later.
    assert!(filter.insert(sender, 11 * WINDOW_SIZE, now));
    assert!(!filter.insert(sender, 11 * WINDOW_SIZE, now));
}

#[test]
fn window_is_deleted_after_its_requests_have_expired() {
    let (mut filter, start, sender) = (ReplayFilter::default(), Instant::now(), ReplicaId::random());
    assert!(filter.insert(sender, 1, start));
    assert!(filter.insert(ReplicaId::random(), 1, start + WINDOW_TTL));
    assert!(!filter.insert(sender, 1, start + WINDOW_TTL));
    assert!(filter.insert(ReplicaId::random(), 1, start + 3 * WINDOW_TTL));
    assert_eq!(filter.0.len(), 1);
}
