//! The parameters of a URL or a form, parsed as by Go's `url.ParseQuery`.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

use crate::QueryError;

/// All characters but the unreserved ones (RFC 3986 section 2.3).
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Decoded names and values, in their order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Parameters(Vec<(Vec<u8>, Vec<u8>)>);

impl Parameters {
    /// Parses parameters. Like Go, it refuses `;`, which was once a separator, and invalid escapes.
    pub(super) fn parse(text: &[u8]) -> Result<Self, QueryError> {
        let pairs = text.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| {
            if pair.contains(&b';') {
                return Err(QueryError::bad_request(
                    "a parameter has a ';': separate parameters by '&', or write %3B",
                ));
            }
            let (name, value) = match pair.iter().position(|byte| *byte == b'=') {
                Some(at) => (&pair[..at], &pair[at + 1..]),
                None => (pair, &[][..]),
            };
            Ok((unescape(name)?, unescape(value)?))
        });
        pairs.collect::<Result<_, _>>().map(Self)
    }

    /// Encodes the parameters as a query string or a form.
    pub(super) fn encode(&self) -> String {
        let mut encoded = String::new();
        for (name, value) in &self.0 {
            if !encoded.is_empty() {
                encoded.push('&');
            }
            encoded.extend(percent_encode(name, ENCODED));
            encoded.push('=');
            encoded.extend(percent_encode(value, ENCODED));
        }
        encoded
    }

    /// Replaces each value of a parameter. Returns the number of values.
    pub(super) fn replace(
        &mut self,
        name: &str,
        mut replace: impl FnMut(&str) -> Result<String, QueryError>,
    ) -> Result<usize, QueryError> {
        let mut count = 0;
        for (_, value) in self.0.iter_mut().filter(|(found, _)| found == name.as_bytes()) {
            let text =
                str::from_utf8(value).map_err(|_| QueryError::bad_request(format!("{name} is not UTF-8")))?;
            *value = replace(text)?.into_bytes();
            count += 1;
        }
        Ok(count)
    }

    pub(super) fn push(&mut self, name: &str, value: &str) {
        self.0.push((name.into(), value.into()));
    }
}

/// Decodes `application/x-www-form-urlencoded`: `+` is a space, `%` starts two hexadecimal digits.
fn unescape(text: &[u8]) -> Result<Vec<u8>, QueryError> {
    let mut unescaped = Vec::with_capacity(text.len());
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        unescaped.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = (bytes.next().and_then(hexadecimal), bytes.next().and_then(hexadecimal));
                let (Some(high), Some(low)) = digits else {
                    return Err(QueryError::bad_request(
                        "a parameter has a '%' without two hexadecimal digits",
                    ));
                };
                high << 4 | low
            }
            byte => *byte,
        });
    }
    Ok(unescaped)
}

fn hexadecimal(digit: &u8) -> Option<u8> {
    char::from(*digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_parsed_as_by_go() {
        for (text, encoded) in [
            ("", ""),
            ("a", "a="),
            ("a=b&&c=d&", "a=b&c=d"),
            ("match[]=up&match%5B%5D=x", "match%5B%5D=up&match%5B%5D=x"),
            ("q%75ery=a+b%2Bc", "query=a%20b%2Bc"),
            ("a=b=c", "a=b%3Dc"),
            ("=x", "=x"),
            ("a=%3b%26%00%ff", "a=%3B%26%00%FF"),
            ("a=#b?c", "a=%23b%3Fc"),
        ] {
            let parameters = Parameters::parse(text.as_bytes()).unwrap();
            assert_eq!(parameters.encode(), encoded, "{text}");
            assert_eq!(Parameters::parse(encoded.as_bytes()).unwrap(), parameters, "{text}");
        }
    }

    #[test]
    fn invalid_parameters_are_refused() {
        for text in ["a;b", "query=up;query=down", "a=%", "a=%4", "a=%4g", "%zz=a", "a=%+1"] {
            assert!(Parameters::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
