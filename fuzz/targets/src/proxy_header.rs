//! `proxy_header::parse` with the first bytes of any connection.
//!
//! * The result does not depend on how the bytes arrive. An incomplete header asks for more bytes than there are, and for no
//!   more than the limit.
//! * The bytes after a header do not change it.
//! * An accepted header is one for a second implementation, which finds the same client and the same length.
//! * An error is one short line.

use ::proxy_header::{ParseConfig, ProxyHeader as SecondHeader};
use gateway::test_support::proxy_header::{MAX_LENGTH, Parsed, ProxyHeader, ProxyHeaderError, parse};

/// Checks one input.
pub fn run(data: &[u8]) {
    match parse_as_it_arrives(data) {
        Ok(Parsed::Complete { header, length }) => check_header(data, header, length),
        Ok(Parsed::Incomplete { length }) => assert!(data.len() < length && length <= MAX_LENGTH),
        Err(error) => {
            let error = error.to_string();
            assert!(error.len() < 200 && !error.contains(char::is_control), "{error:?}");
        }
    }
}

/// Parses the input as a connection whose bytes arrive as they are asked for, and compares the result with that of all bytes.
fn parse_as_it_arrives(data: &[u8]) -> Result<Parsed, ProxyHeaderError> {
    let mut arrived = 0;
    let result = loop {
        match parse(&data[..arrived]) {
            Ok(Parsed::Incomplete { length }) if length <= data.len() => {
                assert!(arrived < length && length <= MAX_LENGTH);
                arrived = length;
            }
            result => break result,
        }
    };
    if !matches!(result, Ok(Parsed::Incomplete { .. })) {
        assert_eq!(parse(data), result);
    }
    result
}

fn check_header(data: &[u8], header: ProxyHeader, length: usize) {
    assert!(length <= data.len() && length <= MAX_LENGTH);
    assert_eq!(parse(&data[..length]), Ok(Parsed::Complete { header, length }));
    let config = ParseConfig { allow_v1: false, ..ParseConfig::default() };
    let second = SecondHeader::parse(data, config);
    match header {
        // The second implementation refuses unknown families of a header whose family is to be ignored.
        ProxyHeader::Local => {
            if let Ok((second, consumed)) = second {
                assert!(second.proxied_address().is_none() && consumed == length);
            }
        }
        ProxyHeader::Forwarded { client } => {
            let (second, consumed) = second.expect("it is a header for both");
            let source = second.proxied_address().expect("it has a client for both").source;
            assert_eq!(
                (source.ip().to_canonical(), source.port(), consumed),
                (client.ip(), client.port(), length)
            );
        }
    }
}
