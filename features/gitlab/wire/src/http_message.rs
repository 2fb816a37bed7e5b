//! HTTP requests and responses in messages, as Go has them: decoded paths, parameters by name, and headers with Go's spelling.

use std::collections::BTreeMap;

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri,
    header::{CONNECTION, CONTENT_LENGTH, HOST, UPGRADE},
    request, response,
};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use prost::Message as _;
use proto::{
    IdentityValue, InvalidIdentityValue, hop_by_hop,
    impersonation::{self, Impersonation},
};

use crate::messages::{
    Any, ExtraKeyValues, ImpersonationConfig, KubernetesExtra, RequestHead, RequestHeader, ResponseHead,
    ResponseHeader, ValueMap, Values,
};

/// The type of [`KubernetesExtra`] in a [`RequestHeader`].
const KUBERNETES_EXTRA: &str = "type.googleapis.com/gitlab.agent.kubernetes_api.rpc.HeaderExtra";

/// The characters that Go encodes in a path (`url.URL.EscapedPath`): all but unreserved ones and `$&+,/:;=@`.
const PATH: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'!')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'\'')
    .add(b'(')
    .add(b')')
    .add(b'*')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// A request that these messages cannot carry without a change of its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnsupportedRequest {
    /// The path has an encoded slash or dot, which would be decoded on the way.
    #[error("its path has an encoded slash or dot, which GitLab's protocol decodes")]
    Path,
    /// The path or the query is not encoded UTF-8.
    #[error("its path or query is not UTF-8 with percent-encoding")]
    Encoding,
    /// The query has a semicolon, which Go refuses as a separator.
    #[error("its query has a semicolon, which GitLab's agentk drops together with its parameter")]
    Semicolon,
    /// A header is not UTF-8.
    #[error("one of its headers is not UTF-8")]
    Header,
    /// The request impersonates two users, or has an unknown header for it.
    #[error("its Impersonate-* headers name two users, or are unknown")]
    Impersonation,
    /// A value of the identity would change on its way.
    #[error("each of its Impersonate-* headers {rule}", rule = InvalidIdentityValue)]
    IdentityValue,
}

/// A message that is not a valid HTTP head.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedHead {
    /// A required field is missing.
    #[error("its field {0} is missing")]
    Missing(&'static str),
    /// A field is not valid in HTTP.
    #[error("its field {0} is not valid in HTTP")]
    Invalid(&'static str),
    /// The request impersonates twice.
    #[error(
        "nested impersonation is not supported: the request has Impersonate-* headers and a user to impersonate"
    )]
    NestedImpersonation,
}

/// Makes the message of a request's head. Hop-by-hop fields, and the fields between kas and agentk, are left out; the identity to
/// impersonate becomes the field `extra`.
///
/// `content_length` is 0 for a request without a body, and -1 if the length is not known.
///
/// # Errors
///
/// If the message would have another meaning than the request.
pub fn encode_request(
    head: &request::Parts,
    content_length: i64,
) -> Result<RequestHeader, UnsupportedRequest> {
    let mut headers = head.headers.clone();
    let upgrade = hop_by_hop::upgrade_protocol(&headers);
    hop_by_hop::strip(&mut headers);
    headers.remove(HOST);
    let impersonated = take_impersonation(&mut headers)?;
    if let Some(protocol) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
    let request = RequestHead {
        method: head.method.as_str().to_owned(),
        header: encode_headers(&headers).ok_or(UnsupportedRequest::Header)?,
        url_path: decode_path(head.uri.path())?,
        query: decode_query(head.uri.query().unwrap_or_default())?,
    };
    let extra = impersonated.map(|config| Any {
        type_url: KUBERNETES_EXTRA.to_owned(),
        value: KubernetesExtra { imp_config: Some(config) }.encode_to_vec().into(),
    });
    Ok(RequestHeader { request: Some(request), extra, content_length: Some(content_length) })
}

/// Reads the head of a request, with the `Impersonate-*` headers of its field `extra`.
///
/// # Errors
///
/// If the head is not valid, or if it impersonates twice.
pub fn decode_request(header: RequestHeader) -> Result<request::Parts, MalformedHead> {
    let RequestHead { method, header: fields, url_path, query } =
        header.request.ok_or(MalformedHead::Missing("request"))?;
    let (mut head, ()) = http::Request::new(()).into_parts();
    head.method = Method::from_bytes(method.as_bytes()).map_err(|_| MalformedHead::Invalid("method"))?;
    head.uri = encode_target(&url_path, query)?;
    head.headers = decode_headers(fields)?;
    // Old versions of kas send no length, and no body with an upgrade.
    let has_body = header.content_length.is_some_and(|length| length != 0);
    // Before the identity is added: `Connection` must not remove it.
    let upgrade = hop_by_hop::requested_upgrade(&head.method, &head.headers).filter(|_| !has_body);
    hop_by_hop::strip(&mut head.headers);
    if let Some(protocol) = upgrade {
        head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        head.headers.insert(UPGRADE, protocol);
    }
    head.headers.remove(HOST);
    // The length of the message is that of its data.
    head.headers.remove(CONTENT_LENGTH);
    if let Some(length) = header.content_length.filter(|length| *length > 0) {
        head.headers.insert(CONTENT_LENGTH, length.into());
    }
    let config = match header.extra {
        Some(extra) if extra.type_url == KUBERNETES_EXTRA => {
            let extra = KubernetesExtra::decode(extra.value);
            extra.map_err(|_| MalformedHead::Invalid("extra"))?.imp_config
        }
        _ => None,
    };
    if let Some(config) = config {
        if head.headers.keys().any(|name| name.as_str().starts_with(impersonation::PREFIX)) {
            return Err(MalformedHead::NestedImpersonation);
        }
        let ImpersonationConfig { username, groups, uid, extra } = config;
        let extra = extra.into_iter().map(|ExtraKeyValues { key, val }| (key, val)).collect();
        let uid = Some(uid).filter(|uid| !uid.is_empty());
        let headers = Impersonation { username, uid, groups, extra }.headers();
        head.headers.extend(headers.map_err(|_| MalformedHead::Invalid("extra"))?);
    }
    Ok(head)
}

/// Makes the message of a response's head.
pub fn encode_response(head: &response::Parts) -> ResponseHeader {
    let mut headers = head.headers.clone();
    let upgrade = hop_by_hop::upgrade_protocol(&headers);
    hop_by_hop::strip(&mut headers);
    if let Some(protocol) = upgrade.filter(|_| head.status == StatusCode::SWITCHING_PROTOCOLS) {
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, protocol);
    }
    let text = head.status.canonical_reason().unwrap_or_default();
    let response = ResponseHead {
        status_code: i32::from(head.status.as_u16()),
        status: format!("{} {text}", head.status.as_u16()).trim_end().to_owned(),
        header: encode_readable_headers(&headers),
    };
    ResponseHeader { response: Some(response) }
}

/// Reads the head of a response. Only a 101 keeps the fields of its upgrade.
///
/// # Errors
///
/// If the head is not valid.
pub fn decode_response(header: ResponseHeader) -> Result<response::Parts, MalformedHead> {
    let ResponseHead { status_code, status: _, header: fields } =
        header.response.ok_or(MalformedHead::Missing("response"))?;
    let (mut head, ()) = http::Response::new(()).into_parts();
    let status = u16::try_from(status_code).ok().and_then(|code| StatusCode::from_u16(code).ok());
    let is_final =
        |status: &StatusCode| !status.is_informational() || *status == StatusCode::SWITCHING_PROTOCOLS;
    head.status = status.filter(is_final).ok_or(MalformedHead::Invalid("status_code"))?;
    head.headers = decode_headers(fields)?;
    let upgrade = hop_by_hop::upgrade_protocol(&head.headers);
    hop_by_hop::strip(&mut head.headers);
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        let protocol = upgrade.ok_or(MalformedHead::Missing("upgrade"))?;
        head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        head.headers.insert(UPGRADE, protocol);
    }
    Ok(head)
}

/// Returns a name with the spelling of Go's `textproto.CanonicalMIMEHeaderKey`. GitLab's agentk looks headers up by it, and would not
/// see `impersonate-user`.
fn canonical(name: &HeaderName) -> String {
    let mut upper = true;
    let spelled = name.as_str().chars().map(|letter| {
        let spelled = if upper { letter.to_ascii_uppercase() } else { letter };
        upper = letter == '-';
        spelled
    });
    spelled.collect()
}

fn encode_headers(headers: &HeaderMap) -> Option<ValueMap> {
    let mut map = ValueMap::with_capacity(headers.keys_len());
    for (name, value) in headers {
        let text = std::str::from_utf8(value.as_bytes()).ok()?;
        map.entry(canonical(name)).or_default().value.push(text.to_owned());
    }
    Some(map)
}

/// Leaves out values that are not UTF-8, which a message cannot carry.
fn encode_readable_headers(headers: &HeaderMap) -> ValueMap {
    let mut map = ValueMap::with_capacity(headers.keys_len());
    for (name, value) in headers {
        if let Ok(text) = std::str::from_utf8(value.as_bytes()) {
            map.entry(canonical(name)).or_default().value.push(text.to_owned());
        }
    }
    map
}

fn decode_headers(fields: ValueMap) -> Result<HeaderMap, MalformedHead> {
    let invalid = || MalformedHead::Invalid("header");
    let mut headers = HeaderMap::with_capacity(fields.len());
    for (name, Values { value: values }) in fields {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
        for value in values {
            headers.append(name.clone(), HeaderValue::from_bytes(value.as_bytes()).map_err(|_| invalid())?);
        }
    }
    Ok(headers)
}

/// Removes the `Impersonate-*` headers, and returns the identity.
fn take_impersonation(headers: &mut HeaderMap) -> Result<Option<ImpersonationConfig>, UnsupportedRequest> {
    let mut config = ImpersonationConfig::default();
    let mut extra = BTreeMap::<String, Vec<String>>::new();
    for (name, value) in &*headers {
        let Some(field) = name.as_str().strip_prefix(impersonation::PREFIX) else { continue };
        let value = IdentityValue::try_from(value).map_err(|_| UnsupportedRequest::IdentityValue)?;
        let text = value.as_str();
        match field {
            // The audit log has the first one, and a message only one.
            "user" if config.username.is_empty() => config.username = text.to_owned(),
            "uid" if config.uid.is_empty() => config.uid = text.to_owned(),
            "group" => config.groups.push(text.to_owned()),
            _ => {
                let key = field.strip_prefix("extra-").ok_or(UnsupportedRequest::Impersonation)?;
                let key = percent_decode_str(key).decode_utf8().map_err(|_| UnsupportedRequest::Header)?;
                extra.entry(key.into_owned()).or_default().push(text.to_owned());
            }
        }
    }
    // GitLab's agentk ignores an identity that has only a unique id. The API server refuses these headers without a user, and so they
    // stay headers.
    if config.username.is_empty() {
        return Ok(None);
    }
    hop_by_hop::remove_if(headers, |name| name.as_str().starts_with(impersonation::PREFIX));
    config.extra = extra.into_iter().map(|(key, val)| ExtraKeyValues { key, val }).collect();
    Ok(Some(config))
}

fn decode_path(path: &str) -> Result<String, UnsupportedRequest> {
    let decoded = percent_decode_str(path).decode_utf8().map_err(|_| UnsupportedRequest::Encoding)?;
    let slashes = |text: &str| text.bytes().filter(|byte| *byte == b'/').count();
    let is_dots = |segment: &str| matches!(segment, "." | "..");
    let mut segments = path.split('/').zip(decoded.split('/'));
    if slashes(path) != slashes(&decoded) || segments.any(|(raw, decoded)| raw != decoded && is_dots(decoded))
    {
        return Err(UnsupportedRequest::Path);
    }
    Ok(decoded.into_owned())
}

fn decode_query(query: &str) -> Result<ValueMap, UnsupportedRequest> {
    if query.contains(';') {
        return Err(UnsupportedRequest::Semicolon);
    }
    let decode = |text: &str| {
        // The decoder keeps an invalid `%` as it is, but Go drops the whole parameter.
        let mut rest = text.as_bytes();
        while let Some(position) = rest.iter().position(|byte| *byte == b'%') {
            let digits = rest.get(position + 1..position + 3);
            if !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
                return Err(UnsupportedRequest::Encoding);
            }
            rest = &rest[position + 3..];
        }
        let spaced = text.replace('+', " ");
        let decoded = percent_decode_str(&spaced).decode_utf8();
        decoded.map(|text| text.into_owned()).map_err(|_| UnsupportedRequest::Encoding)
    };
    let mut map = ValueMap::new();
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        map.entry(decode(name)?).or_default().value.push(decode(value)?);
    }
    Ok(map)
}

/// Returns the path and the query, sorted by name as Go encodes them.
fn encode_target(path: &str, query: ValueMap) -> Result<Uri, MalformedHead> {
    if !path.starts_with('/') {
        return Err(MalformedHead::Invalid("url_path"));
    }
    let mut target = utf8_percent_encode(path, PATH).to_string();
    let mut parameters = url::form_urlencoded::Serializer::new(String::new());
    for (name, Values { value: values }) in BTreeMap::from_iter(query) {
        parameters.extend_pairs(values.iter().map(|value| (&name, value)));
    }
    let query = parameters.finish();
    if !query.is_empty() {
        target = format!("{target}?{query}");
    }
    target.parse().map_err(|_| MalformedHead::Invalid("url_path"))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn encode(target: &str, headers: &[(&str, &str)]) -> Result<RequestHeader, UnsupportedRequest> {
        let request =
            headers.iter().fold(Request::get(target), |request, (name, value)| request.header(*name, *value));
        encode_request(&request.body(()).unwrap().into_parts().0, 0)
    }

    fn names(map: &ValueMap) -> Vec<&str> {
        let mut names: Vec<_> = map.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn headers_have_the_spelling_of_go() {
        let headers = [
            ("sec-websocket-key", "x"),
            ("x-a_b", "1"),
            ("accept", "a"),
            ("accept", "b"),
            ("kas-service", "kubernetes"),
            ("connection", "upgrade, x-private"),
            ("upgrade", "websocket"),
            ("x-private", "1"),
            ("host", "kas"),
        ];
        let request = encode("/ws", &headers).unwrap().request.unwrap();
        assert_eq!(names(&request.header), ["Accept", "Connection", "Sec-Websocket-Key", "Upgrade", "X-A_b"]);
        assert_eq!(request.header["Accept"].value, ["a", "b"]);
    }

    #[test]
    fn impersonated_user_is_a_field_and_no_header() {
        let headers = [
            ("impersonate-user", "alice"),
            ("Impersonate-Group", "a"),
            ("impersonate-group", "b"),
            ("impersonate-uid", "7"),
            ("impersonate-extra-agent.gitlab.com%2fid", "1"),
        ];
        let header = encode("/api", &headers).unwrap();
        assert_eq!(names(&header.request.as_ref().unwrap().header), [""; 0]);
        let decoded = decode_request(header).unwrap().headers;
        assert_eq!(decoded.len(), 5);
        assert_eq!(decoded["impersonate-user"], "alice");
        assert_eq!(decoded["impersonate-extra-agent.gitlab.com%2fid"], "1");
    }

    #[test]
    fn request_that_impersonates_twice_is_refused() {
        let mut header = encode("/api", &[("impersonate-user", "alice")]).unwrap();
        let fields = &mut header.request.as_mut().unwrap().header;
        fields.insert("impersonate-UID".into(), Values { value: vec!["0".into()] });
        assert_eq!(decode_request(header).unwrap_err(), MalformedHead::NestedImpersonation);
    }

    #[test]
    fn connection_removes_no_identity() {
        let mut header = encode("/api", &[("impersonate-user", "alice")]).unwrap();
        let fields = &mut header.request.as_mut().unwrap().header;
        fields.insert("Connection".into(), Values { value: vec!["Impersonate-User, X".into()] });
        assert_eq!(decode_request(header).unwrap().headers["impersonate-user"], "alice");
    }

    #[test]
    fn request_with_two_identities_is_refused() {
        for (name, value) in [("impersonate-user", "bob"), ("impersonate-foo", "x")] {
            let headers = [("impersonate-user", "alice"), (name, value)];
            assert_eq!(encode("/api", &headers), Err(UnsupportedRequest::Impersonation), "{name}");
        }
    }

    #[test]
    fn identity_that_would_change_on_its_way_is_refused() {
        for name in ["impersonate-user", "impersonate-group", "impersonate-uid", "impersonate-extra-a"] {
            let headers = [("impersonate-user", "alice"), (name, " system:masters")];
            assert_eq!(encode("/api", &headers), Err(UnsupportedRequest::IdentityValue), "{name}");
        }
        let mut config = ImpersonationConfig { username: "alice ".into(), ..Default::default() };
        for _ in 0..2 {
            let mut header = encode("/api", &[]).unwrap();
            let extra = KubernetesExtra { imp_config: Some(config.clone()) };
            let value = extra.encode_to_vec().into();
            header.extra = Some(Any { type_url: KUBERNETES_EXTRA.to_owned(), value });
            assert_eq!(decode_request(header).unwrap_err(), MalformedHead::Invalid("extra"));
            config = ImpersonationConfig { username: "alice".into(), groups: vec![" a".into()], ..config };
        }
    }

    #[test]
    fn path_and_query_keep_their_meaning() {
        for (sent, received) in [
            ("/api/v1/pods?limit=5", "/api/v1/pods?limit=5"),
            ("/a%20b/%C3%BC/c%25d/$&+,:;=@", "/a%20b/%C3%BC/c%25d/$&+,:;=@"),
            ("//a/../b", "//a/../b"),
            ("/x?b=2&a=1&b=1&c", "/x?a=1&b=2&b=1&c="),
            ("/x?q=a+b%2Bc%26d", "/x?q=a+b%2Bc%26d"),
            ("/x?", "/x"),
        ] {
            let decoded = decode_request(encode(sent, &[]).unwrap()).unwrap();
            assert_eq!(decoded.uri, received, "{sent}");
        }
    }

    #[test]
    fn request_whose_meaning_would_change_is_refused() {
        for (target, error) in [
            ("/api/v1/a%2Fb", UnsupportedRequest::Path),
            ("/api/%2e%2e/b", UnsupportedRequest::Path),
            ("/api/%ff", UnsupportedRequest::Encoding),
            ("/api?a=%ff", UnsupportedRequest::Encoding),
            ("/api?a=%2", UnsupportedRequest::Encoding),
            ("/api?a=1;b=2", UnsupportedRequest::Semicolon),
        ] {
            assert_eq!(encode(target, &[]).unwrap_err(), error, "{target}");
        }
    }

    #[test]
    fn response_loses_fields_of_its_connection() {
        let fields = [
            ("Connection", "close"),
            ("Content-Type", "text/plain"),
            ("Kas-Error", "internal"),
            ("Upgrade", "x"),
        ];
        let header =
            fields.iter().map(|(name, value)| ((*name).to_owned(), Values { value: vec![(*value).into()] }));
        let response = ResponseHead { status_code: 200, status: "200 OK".into(), header: header.collect() };
        let head = decode_response(ResponseHeader { response: Some(response.clone()) }).unwrap();
        assert_eq!(head.headers.len(), 1, "{:?}", head.headers);
        for status_code in [0, 99, 100, 103, 1000, -1] {
            let response = ResponseHead { status_code, ..response.clone() };
            assert!(decode_response(ResponseHeader { response: Some(response) }).is_err(), "{status_code}");
        }
    }

    #[test]
    fn accepted_upgrade_is_decoded_to_the_same() {
        let response = http::Response::builder()
            .status(101)
            .header("connection", "Upgrade")
            .header("upgrade", "SPDY/3.1");
        let (head, ()) = response.body(()).unwrap().into_parts();
        let encoded = encode_response(&head);
        assert_eq!(encoded.response.as_ref().unwrap().status, "101 Switching Protocols");
        let decoded = decode_response(encoded).unwrap();
        assert_eq!(decoded.headers["upgrade"], "SPDY/3.1");
    }
}
