use std::{pin::pin, task::Poll};

use futures_util::poll;
use tokio::io::{AsyncWriteExt as _, duplex};

use super::*;

const PROXY: u8 = 0x21;
const LOCAL: u8 = 0x20;

fn header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
    [&SIGNATURE[..], &[command, family], &length, rest].concat()
}

/// Addresses and ports of a connection from 192.0.2.7:4660 to 10.0.0.1:443.
const IPV4: [u8; 12] = [192, 0, 2, 7, 10, 0, 0, 1, 0x12, 0x34, 1, 187];

fn ipv6(source: &str) -> Vec<u8> {
    let source: std::net::Ipv6Addr = source.parse().unwrap();
    [&source.octets()[..], &[0; 16], &[0x12, 0x34, 1, 187]].concat()
}

fn field(kind: u8, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len()).unwrap().to_be_bytes();
    [&[kind][..], &length, value].concat()
}

/// Returns a header with the right checksum behind `rest`.
fn with_checksum(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let rest = [rest, &field(TYPE_CRC32C, &[0; 4])].concat();
    let mut bytes = header(command, family, &rest);
    let checksum = crc32c(bytes.iter()).to_be_bytes();
    let at = bytes.len() - 4;
    bytes[at..].copy_from_slice(&checksum);
    bytes
}

fn client_of(bytes: &[u8]) -> Result<Option<SocketAddr>, ProxyHeaderError> {
    match parse(bytes)? {
        Parsed::Complete { header: ProxyHeader::Forwarded { client }, .. } => Ok(Some(client)),
        Parsed::Complete { header: ProxyHeader::Local, .. } => Ok(None),
        Parsed::Incomplete { length } => panic!("{length} bytes are expected, there are {}", bytes.len()),
    }
}

#[test]
fn client_is_the_source_of_the_forwarded_connection() {
    assert_eq!(client_of(&header(PROXY, 0x11, &IPV4)), Ok(Some("192.0.2.7:4660".parse().unwrap())));
    let client = client_of(&header(PROXY, 0x21, &ipv6("2001:db8::7")));
    assert_eq!(client, Ok(Some("[2001:db8::7]:4660".parse().unwrap())));
    let mapped = client_of(&header(PROXY, 0x21, &ipv6("::ffff:192.0.2.7")));
    assert_eq!(mapped, Ok(Some("192.0.2.7:4660".parse().unwrap())));
}

#[test]
fn local_connection_has_no_client() {
    for (family, rest) in
        [(0, &b""[..]), (0, b"whatever"), (0x11, &IPV4), (0x11, b"short"), (0x55, &[7; 100])]
    {
        assert_eq!(client_of(&header(LOCAL, family, rest)), Ok(None), "{family:#x} {rest:?}");
    }
}

#[test]
fn connection_that_is_not_tcp_over_ip_is_refused() {
    for (family, rest) in
        [(0x00, vec![]), (0x10, IPV4.to_vec()), (0x12, IPV4.to_vec()), (0x31, vec![0; 216]), (0x44, vec![])]
    {
        assert_eq!(client_of(&header(PROXY, family, &rest)), Err(ProxyHeaderError::NotTcp(family)));
    }
}

#[test]
fn other_protocols_are_refused_at_their_first_bytes() {
    for (bytes, error) in [
        (&b"GET / HTTP/1.1\r\n"[..], ProxyHeaderError::Missing),
        (b"\x16\x03\x01", ProxyHeaderError::Missing),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ProxyHeaderError::Missing),
        (b"\r\n\r\n\0\r\nQUIX", ProxyHeaderError::Missing),
        (b"PROXY TCP4 192.0.2.7 10.0.0.1 4660 443\r\n", ProxyHeaderError::Version1),
    ] {
        assert_eq!(parse(bytes), Err(error), "{bytes:?}");
    }
    assert_eq!(parse(&header(0x11, 0x11, &IPV4)), Err(ProxyHeaderError::UnknownVersion(1)));
    assert_eq!(parse(&header(0x22, 0x11, &IPV4)), Err(ProxyHeaderError::UnknownCommand(2)));
}

/// The length is known from the first 16 bytes, so that a long header is refused before it is read.
#[test]
fn header_above_the_limit_is_refused_by_its_length() {
    let longest = header(PROXY, 0x11, &[&IPV4[..], &field(4, &[0; MAX_LENGTH - 16 - 12 - 3])].concat());
    assert_eq!(longest.len(), MAX_LENGTH);
    assert!(client_of(&longest).is_ok());
    let mut fixed = header(PROXY, 0x11, &[]);
    fixed[14..].copy_from_slice(&[0xff, 0xff]);
    assert_eq!(parse(&fixed), Err(ProxyHeaderError::TooLong(65_551)));
    fixed[14..].copy_from_slice(&u16::try_from(MAX_LENGTH - 15).unwrap().to_be_bytes());
    assert_eq!(parse(&fixed), Err(ProxyHeaderError::TooLong(MAX_LENGTH + 1)));
}

#[test]
fn fields_that_do_not_fit_are_refused() {
    let malformed = |rest: &[u8]| {
        assert_eq!(parse(&header(PROXY, 0x11, rest)), Err(ProxyHeaderError::Malformed), "{rest:?}");
    };
    malformed(&IPV4[..11]);
    malformed(&[&IPV4[..], &[4]].concat());
    malformed(&[&IPV4[..], &[4, 0]].concat());
    malformed(&[&IPV4[..], &[4, 0, 2, 0]].concat());
    malformed(&[&IPV4[..], &field(TYPE_CRC32C, &[0; 3])].concat());
    let two = [field(TYPE_CRC32C, &[0; 4]), field(TYPE_CRC32C, &[0; 4])].concat();
    malformed(&[&IPV4[..], &two].concat());
}

#[test]
fn checksum_is_that_of_rfc_3720() {
    assert_eq!(crc32c(b"123456789".iter()), 0xe306_9283);
    assert_eq!(crc32c([0; 32].iter()), 0x8a91_36aa);
}

#[test]
fn wrong_checksum_is_refused_wherever_a_bit_differs() {
    let fields = [field(1, b"h2"), field(2, b"kas.example.com")].concat();
    for (command, family, rest) in [
        (PROXY, 0x11, [&IPV4[..], &fields].concat()),
        (PROXY, 0x21, [&ipv6("2001:db8::7")[..], &fields].concat()),
        (LOCAL, 0x00, fields.clone()),
        (LOCAL, 0x11, [&IPV4[..], &fields].concat()),
    ] {
        let good = with_checksum(command, family, &rest);
        assert!(client_of(&good).is_ok());
        // Not in the fixed part and the lengths, where it is another error, or another header.
        let addresses = FIXED_LENGTH..FIXED_LENGTH + addresses_length(family);
        for at in addresses.chain(good.len() - 4..good.len()) {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert_eq!(
                client_of(&bad),
                Err(ProxyHeaderError::Checksum),
                "{command:#x} {family:#x} byte {at}"
            );
        }
    }
}

#[test]
fn incomplete_header_asks_for_the_missing_bytes_only() {
    let whole = with_checksum(PROXY, 0x11, &IPV4);
    for length in 0..whole.len() {
        let expected = if length < FIXED_LENGTH { FIXED_LENGTH } else { whole.len() };
        assert_eq!(parse(&whole[..length]), Ok(Parsed::Incomplete { length: expected }));
    }
    let followed = [&whole[..], b"GET / HTTP/1.1\r\n"].concat();
    let Ok(Parsed::Complete { length, .. }) = parse(&followed) else { panic!() };
    assert_eq!(length, whole.len());
}

#[tokio::test]
async fn bytes_after_the_header_stay_unread() {
    let (mut far, mut near) = duplex(4096);
    let whole = header(PROXY, 0x11, &IPV4);
    for byte in &whole {
        far.write_all(&[*byte]).await.unwrap();
    }
    far.write_all(b"GET").await.unwrap();
    drop(far);
    let header = read(&mut near).await.unwrap().unwrap();
    assert_eq!(header, ProxyHeader::Forwarded { client: "192.0.2.7:4660".parse().unwrap() });
    let mut rest = Vec::new();
    near.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"GET");
}

#[tokio::test]
async fn connection_that_ends_early_is_truncated_or_empty() {
    let whole = header(PROXY, 0x11, &IPV4);
    for length in 0..whole.len() {
        let (mut far, mut near) = duplex(4096);
        far.write_all(&whole[..length]).await.unwrap();
        drop(far);
        let expected = if length == 0 { Ok(None) } else { Err(ProxyHeaderError::Truncated) };
        assert_eq!(read(&mut near).await, expected);
    }
    let (mut far, mut near) = duplex(4096);
    far.write_all(&whole[..20]).await.unwrap();
    let mut reading = pin!(read(&mut near));
    assert_eq!(poll!(reading.as_mut()), Poll::Pending);
}
