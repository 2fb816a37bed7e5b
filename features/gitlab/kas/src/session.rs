//! The credential of a browser session of GitLab: a cookie, the id of the agent, and a CSRF token.
//!
//! The id and the CSRF token are in headers or, where a page cannot set headers (WebSocket), in the query.

use std::borrow::Cow;

use access::{BrowserSession, MAX_TOKEN, SessionParser};
use http::{HeaderMap, header::COOKIE};
use percent_encoding::percent_decode_str;

/// The cookie of GitLab.
const SESSION_COOKIE: &str = "_gitlab_kas";
const AGENT_ID_HEADER: &str = "gitlab-agent-id";
const CSRF_HEADER: &str = "x-csrf-token";
const AGENT_ID_PARAMETER: &str = "gitlab-agent-id";
const CSRF_PARAMETER: &str = "gitlab-csrf-token";

/// Parses the browser sessions of GitLab.
#[derive(Clone, Copy, Debug)]
pub struct GitLabSessions;

impl SessionParser for GitLabSessions {
    fn parse(
        &self,
        headers: &HeaderMap,
        query: Option<&str>,
    ) -> Result<Option<BrowserSession>, &'static str> {
        let Some(cookie) = cookie(headers) else { return Ok(None) };
        let cookie = unescape(cookie).ok_or("the cookie _gitlab_kas is malformed")?;
        let agent = value(headers, AGENT_ID_HEADER, query, AGENT_ID_PARAMETER);
        let agent = agent
            .map_err(|()| "the request names more than one agent")?
            .ok_or("a request with the cookie _gitlab_kas needs the header Gitlab-Agent-Id or the parameter gitlab-agent-id")?;
        let agent = agent.parse().map_err(|_| "Gitlab-Agent-Id is not the id of an agent")?;
        let csrf_token = value(headers, CSRF_HEADER, query, CSRF_PARAMETER);
        let csrf_token = csrf_token
            .map_err(|()| "the request has more than one CSRF token")?
            .filter(|token| !token.trim().is_empty())
            .ok_or("a request with the cookie _gitlab_kas needs the header X-Csrf-Token or the parameter gitlab-csrf-token")?;
        if cookie.len() > MAX_TOKEN || csrf_token.len() > MAX_TOKEN {
            return Err("the cookie _gitlab_kas or its CSRF token is too long");
        }
        Ok(Some(BrowserSession { agent, cookie: cookie.into(), csrf_token: csrf_token.into() }))
    }

    fn without_credentials<'a>(&self, path: &'a str) -> Cow<'a, str> {
        let is_credential = |pair: &&str| {
            let name = pair.split_once('=').map_or(*pair, |(name, _)| name);
            is_named(name, AGENT_ID_PARAMETER) || is_named(name, CSRF_PARAMETER)
        };
        let Some((before, query)) = path.split_once('?') else { return Cow::Borrowed(path) };
        if !query.split('&').any(|pair| is_credential(&pair)) {
            return Cow::Borrowed(path);
        }
        let rest: Vec<&str> = query.split('&').filter(|pair| !is_credential(pair)).collect();
        if rest.is_empty() {
            return Cow::Borrowed(before);
        }
        Cow::Owned(format!("{before}?{}", rest.join("&")))
    }
}

/// Returns the raw value of the cookie. Of several ones, browsers send that with the longest path first (RFC 6265 section 5.4).
fn cookie(headers: &HeaderMap) -> Option<&str> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut cookies = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let (_, value) = cookies.find(|(name, value)| *name == SESSION_COOKIE && !value.is_empty())?;
    Some(value)
}

/// Returns the value of a header or, without the header, of a query parameter.
///
/// # Errors
///
/// There is more than one header or parameter, or the value is not text.
fn value(
    headers: &HeaderMap,
    header: &str,
    query: Option<&str>,
    parameter: &str,
) -> Result<Option<String>, ()> {
    let mut values = headers.get_all(header).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => return value.to_str().map(|text| Some(text.to_owned())).map_err(|_| ()),
        (Some(_), Some(_)) => return Err(()),
        (None, _) => {}
    }
    let parameters =
        query.unwrap_or_default().split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let mut values = parameters.filter(|(name, _)| is_named(name, parameter));
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some((_, value)), None) => unescape(value).map(Some).ok_or(()),
        (Some(_), Some(_)) => Err(()),
    }
}

/// Returns whether the name of a parameter is this one. Its characters may be percent-encoded.
fn is_named(name: &str, expected: &str) -> bool {
    percent_decode_str(name).eq(expected.bytes())
}

/// Decodes a value of a form (`application/x-www-form-urlencoded`), as GitLab encodes cookies.
fn unescape(value: &str) -> Option<String> {
    let complete = value.split('%').skip(1).all(|rest| {
        rest.as_bytes().first_chunk::<2>().is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    });
    let spaced = value.replace('+', " ");
    let decoded = percent_decode_str(&spaced).decode_utf8().ok().filter(|_| complete)?;
    Some(decoded.into_owned())
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};
    use secrecy::{ExposeSecret as _, SecretString};

    use super::*;

    fn parse(headers: &[(&str, &str)], query: &str) -> Result<Option<(u64, String, String)>, &'static str> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap());
        }
        let text = |secret: &SecretString| secret.expose_secret().to_owned();
        let session = GitLabSessions.parse(&map, Some(query))?;
        Ok(session.map(|session| (session.agent.0, text(&session.cookie), text(&session.csrf_token))))
    }

    fn session(cookie: &str) -> Result<Option<(u64, String, String)>, &'static str> {
        Ok(Some((7, cookie.to_owned(), "t".to_owned())))
    }

    const COOKIE: (&str, &str) = ("cookie", "a=b; _gitlab_kas=c%2B%2F%3D--d; _gitlab_kas=other");
    const AGENT: (&str, &str) = ("gitlab-agent-id", "7");
    const CSRF: (&str, &str) = ("x-csrf-token", "t");

    #[test]
    fn session_is_in_headers_or_in_the_query() {
        let expected = session("c+/=--d");
        assert_eq!(parse(&[COOKIE, AGENT, CSRF], ""), expected);
        assert_eq!(parse(&[COOKIE], "x=1&gitlab-agent-id=7&gitlab-csrf-token=t"), expected);
        assert_eq!(parse(&[COOKIE], "gitlab%2Dagent%2Did=7&gitlab-csrf-token=%74"), expected);
        // The header wins.
        assert_eq!(parse(&[COOKIE, AGENT, CSRF], "gitlab-agent-id=8&gitlab-csrf-token=u"), expected);
        // HTTP/2 may split cookies (RFC 9113 section 8.2.3).
        assert_eq!(parse(&[("cookie", "a=b"), ("cookie", "_gitlab_kas=c"), AGENT, CSRF], ""), session("c"));
    }

    #[test]
    fn request_without_the_cookie_has_no_session() {
        for cookie in ["", "a=b", "_gitlab_kas=", "x_gitlab_kas=a", "_gitlab_kas"] {
            assert_eq!(parse(&[("cookie", cookie), AGENT, CSRF], ""), Ok(None), "{cookie}");
        }
    }

    #[test]
    fn incomplete_session_is_refused() {
        for (headers, query, expected) in [
            (&[COOKIE, CSRF][..], "", "Gitlab-Agent-Id"),
            (&[COOKIE, AGENT], "", "X-Csrf-Token"),
            (&[COOKIE, AGENT, ("x-csrf-token", " ")], "", "X-Csrf-Token"),
            (&[COOKIE, AGENT], "gitlab-csrf-token=", "X-Csrf-Token"),
            (&[COOKIE, AGENT, AGENT, CSRF], "", "more than one agent"),
            (&[COOKIE, AGENT, CSRF, CSRF], "", "more than one CSRF token"),
            (&[COOKIE, CSRF], "gitlab-agent-id=7&gitlab-agent-id=8", "more than one agent"),
            (&[COOKIE, CSRF, ("gitlab-agent-id", "prod")], "", "not the id"),
            (&[COOKIE, CSRF, ("gitlab-agent-id", "07")], "", "not the id"),
            (&[("cookie", "_gitlab_kas=%"), AGENT, CSRF], "", "malformed"),
            (&[("cookie", "_gitlab_kas=%f"), AGENT, CSRF], "", "malformed"),
            (&[("cookie", "_gitlab_kas=%ff"), AGENT, CSRF], "", "malformed"),
        ] {
            let error = parse(headers, query).unwrap_err();
            assert!(error.contains(expected), "{headers:?} {query}: {error}");
        }
    }

    #[test]
    fn long_session_is_refused() {
        let long = "c".repeat(MAX_TOKEN + 1);
        let cookie = format!("_gitlab_kas={long}");
        for headers in [[("cookie", &*cookie), AGENT, CSRF], [COOKIE, AGENT, ("x-csrf-token", &long)]] {
            let error = parse(&headers, "").unwrap_err();
            assert_eq!(error, "the cookie _gitlab_kas or its CSRF token is too long");
        }
    }

    #[test]
    fn credentials_are_removed_from_the_query_and_nothing_else() {
        for (path, expected) in [
            ("/api?a=%20&gitlab-agent-id=7&b==&&gitlab-csrf-token=t&c", "/api?a=%20&b==&&c"),
            ("/api?gitlab-agent-id=7&gitlab-csrf-token=t", "/api"),
            ("/api?gitlab-agent-id", "/api"),
            ("/api?gitlab%2dcsrf%2Dtoken=t&x", "/api?x"),
            ("/api?gitlab-agent-idx=7&q=gitlab-agent-id=7", "/api?gitlab-agent-idx=7&q=gitlab-agent-id=7"),
            ("/gitlab-agent-id=7?", "/gitlab-agent-id=7?"),
            ("/api", "/api"),
        ] {
            assert_eq!(GitLabSessions.without_credentials(path), expected, "{path}");
        }
    }
}
