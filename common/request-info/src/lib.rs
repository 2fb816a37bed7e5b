//! The verb and the resource of a request, as the API server's own authorizer determines them.
//!
//! This is `RequestInfoFactory.NewRequestInfo` of k8s.io/apiserver (pkg/endpoints/request/requestinfo.go), for the bytes that
//! are sent. If two servers could interpret the same bytes differently, the result is [`UnclearRequestError`].

#![warn(missing_docs)]

pub mod prometheus;

use std::{borrow::Cow, fmt};

use http::{Method, Uri};
use percent_encoding::percent_decode_str;

/// The error for a request that servers could interpret differently, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnclearRequestError(pub &'static str);

/// The verb and the target of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestInfo<'a> {
    /// The verb as in RBAC: `get`, `list`, …; the lower-case method if the target is a [`RequestTarget::Path`].
    pub verb: &'static str,
    /// The resource or the path.
    pub target: RequestTarget<'a>,
}

/// The target of a request: a resource, or another path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestTarget<'a> {
    /// A path below `/api/<version>/` or `/apis/<group>/<version>/`.
    Resource(ResourceTarget<'a>),
    /// Any other path, decoded: `/version`, `/apis/apps/v1`.
    Path(&'a str),
}

/// An object, or a collection of objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceTarget<'a> {
    /// The API group; empty for the core group.
    pub group: &'a str,
    /// The name of the resource in the plural: `pods`.
    pub resource: &'a str,
    /// The subresource: `log` in `pods/log`.
    pub subresource: Option<&'a str>,
    /// The namespace; `None` for cluster-scoped resources, and for all namespaces.
    pub namespace: Option<&'a str>,
    /// The name of the object; `None` for a collection, and for an object to create.
    pub name: Option<Cow<'a, str>>,
}

/// A decoded path that all servers interpret in the same way. No slash of it was encoded.
#[derive(Debug)]
pub struct DecodedPath<'a>(Cow<'a, str>);

impl<'a> DecodedPath<'a> {
    /// Decodes the path of a URI.
    pub fn new(uri: &'a Uri) -> Result<Self, UnclearRequestError> {
        let path = uri.path();
        let Some(rest) = path.strip_prefix('/') else {
            return Err(UnclearRequestError("its path does not begin with a slash"));
        };
        let rest = match rest.strip_suffix('/') {
            Some("") => return Err(EMPTY),
            Some(rest) => rest,
            None => rest,
        };
        let mut decoded = Cow::Borrowed(path);
        if !rest.is_empty() {
            for raw in rest.split('/') {
                if let Cow::Owned(_) = segment(raw)? {
                    decoded = Cow::Owned(String::new());
                }
            }
        }
        if let Cow::Owned(decoded) = &mut decoded {
            for raw in rest.split('/') {
                decoded.push('/');
                decoded.push_str(&segment(raw)?);
            }
            decoded.push_str(&path[1 + rest.len()..]);
        }

        Ok(Self(decoded))
    }

    /// Decodes a path as the API server does, also one that servers could interpret differently. `merges_slashes` is whether a server in
    /// front of it has merged slashes. This is for the comparison with what a server has done, and never for a decision about a request.
    pub fn lenient(path: &str, merges_slashes: bool) -> DecodedPath<'static> {
        let decoded = percent_decode_str(path).decode_utf8_lossy();
        let segments = decoded.trim_matches('/').split('/');
        let segments: Vec<&str> = segments.filter(|segment| !merges_slashes || !segment.is_empty()).collect();
        DecodedPath(Cow::Owned(format!("/{}", segments.join("/"))))
    }

    /// Returns the segments, and whether the path ends with a slash.
    fn segments(&self) -> (Vec<&str>, bool) {
        match self.0.strip_suffix('/').unwrap_or(&self.0) {
            "" => (Vec::new(), true),
            path => {
                let mut segments = Vec::with_capacity(USUAL_SEGMENTS);
                segments.extend(path.split('/').skip(1));
                (segments, self.0.ends_with('/'))
            }
        }
    }
}

/// The capacity for segments, which longer paths exceed rarely.
const USUAL_SEGMENTS: usize = 12;

impl<'a> RequestInfo<'a> {
    /// Interprets a request by its method, its decoded path and its query.
    pub fn new(
        method: &Method,
        decoded: &'a DecodedPath<'_>,
        query: Option<&str>,
    ) -> Result<Self, UnclearRequestError> {
        let (parts, slash) = decoded.segments();
        let (group, rest) = match parts[..] {
            ["api", _, ref rest @ ..] if !rest.is_empty() => ("", rest),
            ["apis", group, _, ref rest @ ..] if !rest.is_empty() => (group, rest),
            _ => return path_info(method, decoded),
        };

        let (verb, rest) = match *rest {
            ["watch" | "proxy"] => {
                return Err(UnclearRequestError("its path ends where a resource is expected"));
            }
            ["watch", ref rest @ ..] => ("watch", rest),
            ["proxy", ref rest @ ..] => ("proxy", rest),
            ref rest => (verb(method)?, rest),
        };
        let (namespace, rest) = match *rest {
            ["namespaces", namespace] | ["namespaces", namespace, "status" | "finalize", ..] => {
                (Some(namespace), rest)
            }
            ["namespaces", namespace, ref rest @ ..] => (Some(namespace), rest),
            ref rest => (None, rest),
        };
        let subresource = rest.get(2).copied().filter(|_| verb != "proxy");
        if slash && subresource != Some("proxy") {
            return Err(UnclearRequestError("its path ends with a slash"));
        }
        let name = rest.get(1).copied();
        let (verb, selected) = match (verb, name) {
            ("get", None) => list_or_watch(query.unwrap_or_default())?,
            ("delete", None) => ("deletecollection", None),
            (verb, _) => (verb, None),
        };

        let target = ResourceTarget {
            group,
            resource: rest[0],
            subresource,
            namespace,
            name: name.map(Cow::Borrowed).or_else(|| selected.map(Cow::Owned)),
        };
        Ok(Self { verb, target: RequestTarget::Resource(target) })
    }
}

fn path_info<'a>(
    method: &Method,
    decoded: &'a DecodedPath<'_>,
) -> Result<RequestInfo<'a>, UnclearRequestError> {
    let verb = match *method {
        Method::GET => "get",
        Method::HEAD => "head",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::OPTIONS => "options",
        _ => return Err(METHOD),
    };
    Ok(RequestInfo { verb, target: RequestTarget::Path(&decoded.0) })
}

/// The error for a method that the Kubernetes API does not have.
const METHOD: UnclearRequestError = UnclearRequestError("the Kubernetes API has no such method");

fn verb(method: &Method) -> Result<&'static str, UnclearRequestError> {
    match *method {
        Method::GET | Method::HEAD => Ok("get"),
        Method::POST => Ok("create"),
        Method::PUT => Ok("update"),
        Method::PATCH => Ok("patch"),
        Method::DELETE => Ok("delete"),
        _ => Err(METHOD),
    }
}

const EMPTY: UnclearRequestError = UnclearRequestError("its path has an empty segment");

fn segment(raw: &str) -> Result<Cow<'_, str>, UnclearRequestError> {
    if raw.is_empty() {
        return Err(EMPTY);
    }
    let decoded = decode(raw, |byte| {
        matches!(byte, b'/' | b'\\' | b'.' | b'%' | b';' | b'?' | b'#') || byte.is_ascii_control()
    })
    .ok_or(UnclearRequestError("its path has a percent-encoding that servers interpret differently"))?;
    if matches!(&*decoded, "." | "..") || raw.bytes().any(|byte| matches!(byte, b'\\' | b';')) {
        return Err(UnclearRequestError(
            "its path has a segment that servers interpret differently: '.', '..', '\\' or ';'",
        ));
    }

    Ok(decoded)
}

/// Decodes percent-encoded text. Returns `None` if an escape is malformed, if it encodes a `special` byte, or if the result is
/// not UTF-8.
fn decode(raw: &str, special: impl Fn(u8) -> bool) -> Option<Cow<'_, str>> {
    if !raw.as_bytes().contains(&b'%') {
        return Some(Cow::Borrowed(raw));
    }
    for escape in raw.split('%').skip(1) {
        let digits = escape.get(..2).filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))?;
        if special(u8::from_str_radix(digits, 16).ok()?) {
            return None;
        }
    }

    percent_decode_str(raw).decode_utf8().ok()
}

/// Returns the verb of a GET of a collection, `list` or `watch`, and the name that a field selector requires.
fn list_or_watch(query: &str) -> Result<(&'static str, Option<String>), UnclearRequestError> {
    const UNREADABLE: UnclearRequestError =
        UnclearRequestError("its query has an encoding that servers interpret differently");
    let (mut watch, mut selector) = (None, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        // Go treated `;` as a separator once, and now ignores the parameter.
        if pair.contains(';') {
            return Err(UNREADABLE);
        }
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (key, value) = (plus_to_space(key), plus_to_space(value));
        let key = decode(&key, |_| false).ok_or(UNREADABLE)?;
        let value = decode(&value, |_| false).ok_or(UNREADABLE)?;
        // The API server uses the first of several parameters.
        match &*key {
            "watch" => watch.get_or_insert_with(|| value.into_owned()),
            "fieldSelector" => selector.get_or_insert_with(|| value.into_owned()),
            _ => continue,
        };
    }

    let is_false = |value: &str| value.eq_ignore_ascii_case("false") || value == "0";
    let verb = if watch.is_some_and(|value| !is_false(&value)) { "watch" } else { "list" };
    Ok((verb, selector.and_then(|selector| selected_name(&selector))))
}

/// Replaces `+`, which is a space in queries.
fn plus_to_space(text: &str) -> Cow<'_, str> {
    if text.contains('+') { Cow::Owned(text.replace('+', " ")) } else { Cow::Borrowed(text) }
}

/// Returns the name that a field selector requires.
fn selected_name(selector: &str) -> Option<String> {
    if selector.contains('\\') {
        return None;
    }
    let required = selector.split(',').find_map(|term| {
        let value = term.strip_prefix("metadata.name=")?;
        Some(value.strip_prefix('=').unwrap_or(value))
    });
    let name = required
        .filter(|name| !name.is_empty() && !matches!(*name, "." | "..") && !name.contains(['/', '%']));
    name.map(str::to_owned)
}

impl fmt::Display for RequestInfo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            RequestTarget::Path(path) => write!(f, "{} {path}", self.verb),
            RequestTarget::Resource(resource) => write!(f, "{} {resource}", self.verb),
        }
    }
}

impl fmt::Display for ResourceTarget<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.resource)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        if let Some(subresource) = &self.subresource {
            write!(f, "/{subresource}")?;
        }
        if let Some(name) = &self.name {
            write!(f, " {name:?}")?;
        }
        match &self.namespace {
            Some(namespace) => write!(f, " in namespace {namespace:?}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
