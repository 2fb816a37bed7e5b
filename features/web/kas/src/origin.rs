//! Checks that a request comes from the page itself, and not from another site that uses the cookie of the reader (CSRF), nor from a tab
//! whose reader was another caller.

use http::{
    HeaderMap, HeaderName,
    header::{HOST, ORIGIN},
};
use percent_encoding::percent_decode;

/// The header that the page sends with each request. Another site cannot send it without the consent of kas, which gives none (CORS).
pub(super) const MARK: HeaderName = HeaderName::from_static("kas-web");
/// The header in which the page sends the name of the caller that it was loaded for, percent-encoded.
pub(super) const CALLER: HeaderName = HeaderName::from_static("kas-web-caller");
/// The header in which browsers describe the site that sends the request (Fetch Metadata).
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Returns whether another site has sent the browser here. Browsers that do not name the site pass.
pub(super) fn is_foreign(headers: &HeaderMap) -> bool {
    headers.get(SITE).is_some_and(|site| site != "same-origin" && site != "none")
}

/// Returns whether the page itself sends a request. `authority` is that of HTTP/2, in place of `Host`.
pub(super) fn is_own(headers: &HeaderMap, authority: Option<&str>) -> bool {
    let text = |name: &HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let host = authority.or_else(|| text(&HOST)).unwrap_or_default();
    let is_own_origin = |origin: &str| {
        let origin = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
        origin.is_some_and(|origin| !origin.is_empty() && origin.eq_ignore_ascii_case(host))
    };
    text(&MARK) == Some("1")
        && text(&SITE).is_none_or(|site| site == "same-origin")
        && text(&ORIGIN).is_none_or(is_own_origin)
        && headers.get_all(ORIGIN).iter().count() <= 1
}

/// Returns whether a request comes from a page that was loaded for the caller `name`. The page sends no name before it knows its session.
pub(super) fn is_of_caller(headers: &HeaderMap, name: &str) -> bool {
    headers.get_all(CALLER).iter().all(|sent| percent_decode(sent.as_bytes()).eq(name.bytes()))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn own(headers: &[(&'static str, &'static str)]) -> bool {
        let headers = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        is_own(&headers.collect(), None)
    }

    #[test]
    fn only_the_page_itself_is_served() {
        let (mark, host) = (("kas-web", "1"), ("host", "kas.example.com:8156"));
        for (more, expected) in [
            (&[][..], true),
            (&[("sec-fetch-site", "same-origin")], true),
            (&[("sec-fetch-site", "same-site")], false),
            (&[("sec-fetch-site", "cross-site")], false),
            (&[("sec-fetch-site", "none")], false),
            (&[("origin", "https://kas.example.com:8156")], true),
            (&[("origin", "https://kas.example.com:8154")], false),
            (&[("origin", "https://kas.example.com")], false),
            (&[("origin", "https://evil.example.com")], false),
            (&[("origin", "null")], false),
            (&[("origin", "https://")], false),
        ] {
            assert_eq!(own(&[&[mark, host], more].concat()), expected, "{more:?}");
        }
        assert!(!own(&[host]), "a request without the header is that of a form or of an image");
        assert!(!own(&[("kas-web", "0"), host]));
    }

    #[test]
    fn page_of_another_caller_is_recognized() {
        let loaded_for = |sent: &[&'static str]| {
            let headers: HeaderMap =
                sent.iter().map(|name| (CALLER, HeaderValue::from_static(name))).collect();
            is_of_caller(&headers, "Zoë 100%")
        };
        assert!(loaded_for(&[]) && loaded_for(&["Zo%C3%AB%20100%25"]));
        assert!(!loaded_for(&["bob"]) && !loaded_for(&[""]) && !loaded_for(&["Zo%C3%AB%20100%25", "bob"]));
    }
}
