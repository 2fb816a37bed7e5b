//! What a request asks the API server for, read as the API server's own authorizer reads it.
//!
//! This is `RequestInfoFactory.NewRequestInfo` of k8s.io/apiserver (pkg/endpoints/request/requestinfo.go), over the
//! bytes that are sent on. Where two servers could read the same bytes differently, there is no answer but [`Unclear`].

use std::{borrow::Cow, fmt};

use http::{Method, Uri};
use percent_encoding::percent_decode_str;

/// A request that cannot be judged, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unclear(pub &'static str);

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked<'a> {
    /// As in RBAC: `get`, `list`, …; the lower-case method where the target is a [`Target::Path`].
    pub verb: &'static str,
    /// Of what.
    pub target: Target<'a>,
}

/// Objects, or something beside them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// Below `/api/<version>/` or `/apis/<group>/<version>/`.
    Resource(Resource<'a>),
    /// Anything else, decoded: `/version`, `/apis/apps/v1`.
    Path(&'a str),
}

/// One object, or a collection of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resource<'a> {
    /// Empty for the core group.
    pub group: &'a str,
    /// In the plural: `pods`.
    pub resource: &'a str,
    /// `log` in `pods/log`.
    pub subresource: Option<&'a str>,
    /// None for what has no namespace, and for all namespaces.
    pub namespace: Option<&'a str>,
    /// None for a collection, and for an object that is created.
    pub name: Option<Cow<'a, str>>,
}

/// A path that all servers read alike, decoded. It has no slash that was not there before.
#[derive(Debug)]
pub struct Path<'a>(Cow<'a, str>);

impl<'a> Path<'a> {
    /// Decodes a request's.
    pub fn of(uri: &'a Uri) -> Result<Self, Unclear> {
        let path = uri.path();
        let Some(rest) = path.strip_prefix('/') else {
            return Err(Unclear("its path does not begin with a slash"));
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

    /// The segments, and whether a slash comes after the last.
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

/// Of paths that are longer, and rare, more are made room for.
const USUAL_SEGMENTS: usize = 12;

/// Reads a request, whose path was decoded.
pub fn read<'a>(method: &Method, decoded: &'a Path<'_>, query: Option<&str>) -> Result<Asked<'a>, Unclear> {
    let (parts, slash) = decoded.segments();
    let (group, rest) = match parts[..] {
        ["api", _, ref rest @ ..] if !rest.is_empty() => ("", rest),
        ["apis", group, _, ref rest @ ..] if !rest.is_empty() => (group, rest),
        _ => return path(method, decoded),
    };

    let (verb, rest) = match *rest {
        ["watch" | "proxy"] => return Err(Unclear("its path ends where a resource is expected")),
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
        return Err(Unclear("its path ends with a slash"));
    }
    let name = rest.get(1).copied();
    let (verb, selected) = match (verb, name) {
        ("get", None) => list_or_watch(query.unwrap_or_default())?,
        ("delete", None) => ("deletecollection", None),
        (verb, _) => (verb, None),
    };

    let target = Resource {
        group,
        resource: rest[0],
        subresource,
        namespace,
        name: name.map(Cow::Borrowed).or_else(|| selected.map(Cow::Owned)),
    };
    Ok(Asked { verb, target: Target::Resource(target) })
}

fn path<'a>(method: &Method, decoded: &'a Path<'_>) -> Result<Asked<'a>, Unclear> {
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
    Ok(Asked { verb, target: Target::Path(&decoded.0) })
}

const METHOD: Unclear = Unclear("the Kubernetes API knows no such method");

fn verb(method: &Method) -> Result<&'static str, Unclear> {
    match *method {
        Method::GET | Method::HEAD => Ok("get"),
        Method::POST => Ok("create"),
        Method::PUT => Ok("update"),
        Method::PATCH => Ok("patch"),
        Method::DELETE => Ok("delete"),
        _ => Err(METHOD),
    }
}

const EMPTY: Unclear = Unclear("its path has an empty segment");

fn segment(raw: &str) -> Result<Cow<'_, str>, Unclear> {
    if raw.is_empty() {
        return Err(EMPTY);
    }
    let decoded = decode(raw, |byte| {
        matches!(byte, b'/' | b'\\' | b'.' | b'%' | b';' | b'?' | b'#') || byte.is_ascii_control()
    })
    .ok_or(Unclear("its path has a percent-encoding that servers read differently"))?;
    if matches!(&*decoded, "." | "..") || raw.bytes().any(|byte| matches!(byte, b'\\' | b';')) {
        return Err(Unclear("its path has a segment that servers read differently: '.', '..', '\\' or ';'"));
    }

    Ok(decoded)
}

/// None if an escape is malformed, is of a byte that is `special`, or is of no text.
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

/// Which of the two a collection is asked for, and the only name that it may contain, if it is one.
fn list_or_watch(query: &str) -> Result<(&'static str, Option<String>), Unclear> {
    const UNREADABLE: Unclear = Unclear("its query is not encoded as servers agree on");
    let (mut watch, mut selector) = (None, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        // Once a separator, now a reason to ignore the parameter.
        if pair.contains(';') {
            return Err(UNREADABLE);
        }
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (key, value) = (spaced(key), spaced(value));
        let key = decode(&key, |_| false).ok_or(UNREADABLE)?;
        let value = decode(&value, |_| false).ok_or(UNREADABLE)?;
        // Of several, the API server takes the first.
        match &*key {
            "watch" => watch.get_or_insert_with(|| value.into_owned()),
            "fieldSelector" => selector.get_or_insert_with(|| value.into_owned()),
            _ => continue,
        };
    }

    let off = |value: &str| value.eq_ignore_ascii_case("false") || value == "0";
    let verb = if watch.is_some_and(|value| !off(&value)) { "watch" } else { "list" };
    Ok((verb, selector.and_then(|selector| selected(&selector))))
}

/// In queries, `+` is a space.
fn spaced(text: &str) -> Cow<'_, str> {
    if text.contains('+') { Cow::Owned(text.replace('+', " ")) } else { Cow::Borrowed(text) }
}

/// The name that a field selector requires.
fn selected(selector: &str) -> Option<String> {
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

impl fmt::Display for Asked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Target::Path(path) => write!(f, "{} {path}", self.verb),
            Target::Resource(resource) => write!(f, "{} {resource}", self.verb),
        }
    }
}

impl fmt::Display for Resource<'_> {
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
