//! Both halves against each other, and against the RFC's examples.

use bytes::{Bytes, BytesMut};
use http::{HeaderName, HeaderValue, StatusCode};

use super::{Decoder, Encoder, Field, Malformed, Pseudo};

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<Field>, Malformed> {
    let mut fields = Vec::new();
    decoder.decode(Bytes::copy_from_slice(block), |field| fields.push(field))?;
    Ok(fields)
}

fn header(name: &'static str, value: &str) -> Field {
    Field::Header(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
}

fn pseudo(pseudo: Pseudo, value: &str) -> Field {
    Field::Pseudo(pseudo, Bytes::copy_from_slice(value.as_bytes()))
}

fn encode(encoder: &mut Encoder, fields: &[(&'static str, &str)]) -> Vec<u8> {
    let mut out = BytesMut::new();
    encoder.begin(&mut out);
    for (name, value) in fields {
        encoder.header(&mut out, &HeaderName::from_static(name), &HeaderValue::from_str(value).unwrap());
    }
    out.to_vec()
}

/// RFC 7541 appendix C.4: three requests on one connection.
#[test]
fn the_examples_of_the_rfc_are_understood() {
    let mut decoder = Decoder::new();
    let first = [
        0x82, 0x86, 0x84, 0x41, 0x8c, 0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff,
    ];
    let common = [
        pseudo(Pseudo::Method, "GET"),
        pseudo(Pseudo::Scheme, "http"),
        pseudo(Pseudo::Path, "/"),
        pseudo(Pseudo::Authority, "www.example.com"),
    ];
    assert_eq!(decode(&mut decoder, &first).unwrap(), common);
    let second = [0x82, 0x86, 0x84, 0xbe, 0x58, 0x86, 0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf];
    let mut expected = common.to_vec();
    expected.push(header("cache-control", "no-cache"));
    assert_eq!(decode(&mut decoder, &second).unwrap(), expected);
    let third = [
        0x82, 0x87, 0x85, 0xbf, 0x40, 0x88, 0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xa9, 0x7d, 0x7f, 0x89, 0x25, 0xa8,
        0x49, 0xe9, 0x5b, 0xb8, 0xe8, 0xb4, 0xbf,
    ];
    let expected = [
        pseudo(Pseudo::Method, "GET"),
        pseudo(Pseudo::Scheme, "https"),
        pseudo(Pseudo::Path, "/index.html"),
        pseudo(Pseudo::Authority, "www.example.com"),
        header("custom-key", "custom-value"),
    ];
    assert_eq!(decode(&mut decoder, &third).unwrap(), expected);
}

#[test]
fn what_comes_again_is_said_in_one_byte_and_what_does_not_pushes_nothing_out() {
    let (mut encoder, mut decoder) = (Encoder::default(), Decoder::new());
    for id in 0..1000 {
        let id = format!("request-{id}");
        let fields = [("accept", "application/json"), ("x-request-id", &*id), ("user-agent", "kubectl")];
        let block = encode(&mut encoder, &fields);
        let expected: Vec<_> = fields.iter().map(|(name, value)| header(name, value)).collect();
        assert_eq!(decode(&mut decoder, &block).unwrap(), expected);
        if id != "request-0" {
            // A byte each, and the id with two for its name and one for its length.
            assert_eq!(block.len(), 1 + 2 + 1 + id.len() + 1, "{id}");
        }
    }
}

#[test]
fn tables_that_overflow_stay_the_same_at_both_ends() {
    let (mut encoder, mut decoder) = (Encoder::default(), Decoder::new());
    for round in 0..300_usize {
        if round % 70 == 69 {
            encoder.limit(round * 31 % 2000);
            encoder.limit(round * 17 % 6000);
        }
        let values: Vec<String> = (0..12).map(|n| format!("{}", (round * n) % 37).repeat(n * 9)).collect();
        let names = ["a", "b", "content-type", "d", "date"];
        let fields: Vec<(&'static str, &str)> =
            values.iter().enumerate().map(|(n, value)| (names[(round + n) % 5], &**value)).collect();
        let expected: Vec<_> = fields.iter().map(|(name, value)| header(name, value)).collect();
        assert_eq!(decode(&mut decoder, &encode(&mut encoder, &fields)).unwrap(), expected, "{round}");
    }
}

#[test]
fn heads_begin_with_their_pseudo_fields() {
    let (mut encoder, mut decoder) = (Encoder::default(), Decoder::new());
    for (method, path, protocol) in [
        ("GET", "/", None),
        ("POST", "/a?b", None),
        ("PATCH", "/x", None),
        ("CONNECT", "/exec", Some("websocket")),
    ] {
        let mut out = BytesMut::new();
        encoder.request(&mut out, method, path, protocol);
        let mut expected = vec![
            pseudo(Pseudo::Method, method),
            pseudo(Pseudo::Scheme, "http"),
            pseudo(Pseudo::Authority, "agent"),
            pseudo(Pseudo::Path, path),
        ];
        expected.extend(protocol.map(|protocol| pseudo(Pseudo::Protocol, protocol)));
        assert_eq!(decode(&mut decoder, &out).unwrap(), expected);
    }
    for status in [200, 204, 206, 304, 400, 404, 500, 201, 503] {
        let mut out = BytesMut::new();
        encoder.status(&mut out, StatusCode::from_u16(status).unwrap());
        assert_eq!(decode(&mut decoder, &out).unwrap(), [pseudo(Pseudo::Status, &status.to_string())]);
    }
}

#[test]
fn secrets_are_never_remembered() {
    let (mut encoder, mut decoder) = (Encoder::default(), Decoder::new());
    let mut secret = HeaderValue::from_static("hunter2");
    secret.set_sensitive(true);
    for _ in 0..3 {
        let mut out = BytesMut::new();
        encoder.header(&mut out, &HeaderName::from_static("x-token"), &secret);
        assert_eq!(out[0], 0x10);
        assert_eq!(decode(&mut decoder, &out).unwrap(), [header("x-token", "hunter2")]);
    }
}

#[test]
fn what_is_no_field_is_told_from_what_is_no_block() {
    let mut decoder = Decoder::new();
    // Upper case, and a line feed in a value.
    for bad in [&[0x00, 0x01, b'A', 0x01, b'b'][..], &[0x00, 0x01, b'a', 0x01, b'\n']] {
        assert_eq!(decode(&mut decoder, bad).unwrap(), [Field::Bad { name: 1, value: 1 }]);
    }
    for bad in [
        &[0x80][..],         // field 0
        &[0xbe],             // a field of an empty table
        &[0x7e, 0x01, b'a'], // its name
        &[0x82, 0x20],       // a size in the middle
        &[0x3f, 0xe2, 0x1f], // 4097 bytes
        &[0x00, 0x05, b'a'], // a string that is cut off
        &[0x00, 0x01],       // and one that is missing
        &[0x40, 0x81, 0xff], // packed badly
    ] {
        assert!(decode(&mut Decoder::new(), bad).is_err(), "{bad:x?}");
    }
}

/// One byte may say a field of four kilobytes: what it unpacks to is counted by whoever listens.
#[test]
fn a_field_counts_in_full_each_time_it_is_said() {
    let mut decoder = Decoder::new();
    let mut block = vec![0x40, 0x01, b'a', 0x7f, 0xa1, 0x1e];
    block.extend([b'x'; 4000]);
    block.extend([0xbe; 100]);
    let fields = decode(&mut decoder, &block).unwrap();
    assert_eq!(fields.iter().map(Field::size).sum::<usize>(), 101 * (4001 + 32));
}

/// Or what follows on the connection would mean something else.
#[test]
fn a_field_that_http_does_not_know_takes_its_place_in_the_table() {
    let mut decoder = Decoder::new();
    // A table for three fields, if one of them has no name.
    let mut block = vec![0x3f, 110 - 31];
    block.extend_from_slice(b"\x40\x0aUPPER-CASE\x01a\x7e\x01b\x40\x01x\x01y");
    let bad = Field::Bad { name: 10, value: 1 };
    assert_eq!(decode(&mut decoder, &block).unwrap(), [bad.clone(), bad.clone(), header("x", "y")]);
    assert_eq!(decode(&mut decoder, &[0xbe, 0xbf]).unwrap(), [header("x", "y"), bad]);
    assert!(decode(&mut decoder, &[0xc0]).is_err());
}

#[test]
fn a_secret_stays_one_on_the_next_connection() {
    let (mut encoder, mut out) = (Encoder::default(), BytesMut::new());
    let mut secret = HeaderValue::from_static("secret");
    secret.set_sensitive(true);
    encoder.header(&mut out, &HeaderName::from_static("x"), &secret);
    let fields = decode(&mut Decoder::new(), &out).unwrap();
    assert!(matches!(&fields[..], [Field::Header(_, value)] if value.is_sensitive() && value == secret));
}
