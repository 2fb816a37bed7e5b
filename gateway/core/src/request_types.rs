//! The types of requests that callers send: their names, and what kas has to know of a request to forward it.
//!
//! The type `kubernetes` is here. Each feature brings those of its own.

use std::{fmt::Debug, future::ready, sync::Arc};

use access::{ErrorDialect, RequestError, Target, UrlPathPrefix};
use futures_util::future::BoxFuture;
use http::{Method, Request, Uri};
use percent_encoding::percent_decode_str;
use proto::{Reason, ServiceName};
use request_info::{DecodedPath, RequestInfo, RequestTarget};
use router::RequestClass;
use tunnel::Body;

use crate::request_hooks::AuthorizedRequest;

/// A type of requests that callers send. The defaults are those of types that kas does not know.
pub trait RequestType: Debug + Send + Sync {
    /// Returns the name, which is also the value of the label `service` of metrics.
    fn name(&self) -> &'static str;

    /// Returns whether this is the type of a service.
    fn serves(&self, service: &ServiceName) -> bool {
        service.as_str() == self.name()
    }

    /// Returns the dialect of errors.
    fn dialect(&self) -> ErrorDialect {
        ErrorDialect::Plain
    }

    /// Returns whether the response is a stream that stays open. The path has no query.
    fn is_streaming(&self, _path: &str, query: &str) -> bool {
        asks_for_stream(query)
    }

    /// Returns whether the request is a watch, which its client sends again when the response ends.
    fn is_watch(&self, _method: &Method, _uri: &Uri) -> bool {
        false
    }

    /// Returns whether the response is one of an application in the cluster, to which the service only forwards.
    fn is_application(&self, _path: &str) -> bool {
        false
    }

    /// Returns whether kas changes the request before an agent receives it: the rights of the caller require it, or kas does a part of what
    /// it asks for.
    fn restricts(&self, _authorized: AuthorizedRequest<'_>) -> bool {
        false
    }

    /// Restricts a request to what its caller may see, and to what agents understand. May read its body, if that is a form of at most `max_form` bytes.
    ///
    /// # Errors
    ///
    /// The request cannot be restricted. `body-too-large`: its form has more bytes.
    fn restrict<'a>(
        &'a self,
        _authorized: AuthorizedRequest<'a>,
        _request: Request<Body>,
        _max_form: usize,
    ) -> BoxFuture<'a, Result<Request<Body>, RequestError>> {
        Box::pin(ready(Err(not_enforceable())))
    }

    /// Interprets a request for the audit log. `uri` is the path with the query as the service receives it.
    fn operation(&self, method: &Method, _uri: &Uri) -> RequestOperation {
        RequestOperation::of_method(method)
    }
}

/// The operation of a request in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestOperation {
    /// For Kubernetes the verb as in RBAC; otherwise the method in lower case.
    pub verb: String,
    /// The request may change something.
    pub changes: bool,
    /// The request reads secrets or the audit log of the cluster, or creates a token.
    pub reads_secret: bool,
    /// Servers could interpret the path differently, so that it may be one of secrets.
    pub unclear_path: bool,
}

/// The types that kas knows. Clones are cheap.
#[derive(Clone, Debug)]
pub struct RequestTypes(Arc<[Box<dyn RequestType>]>);

/// A type with a name, and the defaults.
#[derive(Debug)]
pub struct Named(pub &'static str);

/// The type `kubernetes`.
#[derive(Debug)]
struct Kubernetes;

/// The types that kas does not know.
const OTHER: Named = Named("other");

impl RequestType for Named {
    fn name(&self) -> &'static str {
        self.0
    }
}

impl RequestType for Kubernetes {
    fn name(&self) -> &'static str {
        ServiceName::KUBERNETES
    }

    fn dialect(&self) -> ErrorDialect {
        ErrorDialect::Kubernetes
    }

    fn is_streaming(&self, path: &str, query: &str) -> bool {
        is_deprecated_watch(path) || asks_for_stream(query)
    }

    fn is_watch(&self, method: &Method, uri: &Uri) -> bool {
        self.operation(method, uri).verb == "watch"
    }

    fn is_application(&self, path: &str) -> bool {
        let Some(path) = path.strip_prefix("/api/v1/") else { return false };
        let mut parts = path.split('/');
        match parts.next() {
            Some("namespaces") => {
                matches!(parts.nth(1), Some("pods" | "services")) && parts.nth(1) == Some("proxy")
            }
            Some("nodes") => parts.nth(1) == Some("proxy"),
            _ => false,
        }
    }

    fn operation(&self, method: &Method, uri: &Uri) -> RequestOperation {
        let by_method = RequestOperation::of_method(method);
        let decoded = DecodedPath::new(uri);
        let info = decoded.as_ref().map_err(|error| *error);
        match info.and_then(|path| RequestInfo::new(method, path, uri.query())) {
            Ok(info) => RequestOperation {
                verb: info.verb.to_owned(),
                reads_secret: reads_secret(&info),
                ..by_method
            },
            // Every other method is a change already, or reads nothing.
            Err(_) => {
                RequestOperation { unclear_path: matches!(*method, Method::GET | Method::HEAD), ..by_method }
            }
        }
    }
}

fn reads_secret(info: &RequestInfo<'_>) -> bool {
    let RequestTarget::Resource(target) = &info.target else { return false };
    let secrets = target.group.is_empty()
        && target.resource == "secrets"
        && matches!(info.verb, "get" | "list" | "watch");
    secrets || target.subresource == Some("token")
}

impl RequestOperation {
    /// Interprets a request by its method alone.
    pub fn of_method(method: &Method) -> Self {
        Self {
            verb: method.as_str().to_ascii_lowercase(),
            changes: !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS),
            reads_secret: false,
            unclear_path: false,
        }
    }
}

impl RequestTypes {
    /// Returns the type `kubernetes` with those of features.
    pub fn with(features: Vec<Box<dyn RequestType>>) -> Self {
        let own: [Box<dyn RequestType>; 1] = [Box::new(Kubernetes)];
        Self(own.into_iter().chain(features).collect())
    }

    /// Returns the type of a service.
    pub fn of(&self, service: &ServiceName) -> &dyn RequestType {
        self.0.iter().find(|known| known.serves(service)).map_or(&OTHER, |known| &**known)
    }

    /// Returns the type of a request if it has to restrict it.
    ///
    /// # Errors
    ///
    /// `not-enforceable`: the caller may see only some series, and the type does not know that.
    pub(crate) fn restriction(
        &self,
        authorized: AuthorizedRequest<'_>,
    ) -> Result<Option<&dyn RequestType>, RequestError> {
        let service = &authorized.destination.service;
        let kind = self.of(service);
        if kind.restricts(authorized) {
            Ok(Some(kind))
        } else if authorized.grant.caller.labels(service).is_some() {
            Err(not_enforceable())
        } else {
            Ok(None)
        }
    }

    /// Returns the names of all types, which are the values of the label `service`. Agents may announce any name, and the number of
    /// series must not grow with them.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|known| known.name()).chain([OTHER.name()])
    }

    /// Returns the dialect of errors for a path, which kas needs before the path is parsed.
    pub fn dialect(&self, path: &str, prefix: &UrlPathPrefix) -> ErrorDialect {
        let service = Target::service_of(path, prefix).and_then(|service| service.parse().ok());
        service.map_or(ErrorDialect::Plain, |service| self.of(&service).dialect())
    }

    /// Returns whether a request is a watch. `class` is that of its response.
    pub(crate) fn is_watch(
        &self,
        service: &ServiceName,
        class: RequestClass,
        method: &Method,
        uri: &Uri,
    ) -> bool {
        // Most requests are short, and are not parsed.
        class == RequestClass::Streaming && self.of(service).is_watch(method, uri)
    }

    /// Returns whether the response to a request stays open.
    pub fn class(&self, target: &Target<'_>, upgrading: bool) -> RequestClass {
        let (path, query) = target.path.split_once('?').unwrap_or((target.path, ""));
        if upgrading || self.of(&target.service).is_streaming(path, query) {
            RequestClass::Streaming
        } else {
            RequestClass::Short
        }
    }
}

fn not_enforceable() -> RequestError {
    RequestError::new(Reason::NotEnforceable, "kas cannot restrict requests of this type")
}

/// Returns whether a path is that of a watch without a parameter, which API servers still serve: `/apis/apps/v1/watch/deployments`. API
/// servers decode escapes before they read the path.
fn is_deprecated_watch(path: &str) -> bool {
    let path = percent_decode_str(path).decode_utf8_lossy();
    let version = path.strip_prefix("/api/").or_else(|| {
        let (_group, rest) = path.strip_prefix("/apis/")?.split_once('/')?;
        Some(rest)
    });
    version.and_then(|version| version.split_once('/')).is_some_and(|(_, rest)| rest.starts_with("watch/"))
}

/// Returns whether a parameter of the query makes the response of an API server a stream. The server treats every value except
/// `false` and `0` as true, even a missing one (`Convert_Slice_string_To_bool` of apimachinery).
pub fn asks_for_stream(query: &str) -> bool {
    query.split('&').any(|parameter| {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let name = percent_decode_str(name);
        (name.clone().eq(*b"watch") || name.eq(*b"follow"))
            && value != "0"
            && !value.eq_ignore_ascii_case("false")
    })
}

#[cfg(test)]
mod tests {
    use std::{
        borrow::Cow,
        net::{IpAddr, Ipv4Addr},
        path::Path,
    };

    use access::{
        AccessControl, BrowserSession, CallerAuthorizer, FileCallers, Grant, Identities, Identity,
        SessionParser, UnknownCredentials, token::TokenHash,
    };
    use futures_util::FutureExt as _;
    use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
    use prometheus_client::metrics::counter::Counter;
    use proto::AgentId;
    use secrecy::SecretString;

    use super::*;
    use crate::destination::Destination;

    /// No request has a browser session.
    #[derive(Debug)]
    struct NoSessions;

    impl SessionParser for NoSessions {
        fn parse(&self, _: &HeaderMap, _: Option<&str>) -> Result<Option<BrowserSession>, &'static str> {
            Ok(None)
        }

        fn without_credentials<'a>(&self, path: &'a str) -> Cow<'a, str> {
            Cow::Borrowed(path)
        }
    }

    /// The rights of a caller who may see only series of one namespace.
    fn grant() -> Arc<Grant> {
        let hash = TokenHash::of(&SecretString::from("token"));
        let text = format!(
            "agents: [{{id: 1, name: prod, tokens: []}}]\n\
             callers: [{{name: a, tokens: ['{hash}'], agents: [prod], services: [prometheus], prometheus: {{labels: {{ns: [x]}}}}}}]"
        );
        let identities = Identities::new(Identity::parse(Path::new("id.yaml"), &text).unwrap());
        let unknown = Arc::new(UnknownCredentials::new(60, Counter::default()));
        let file = Arc::new(FileCallers::new(identities, None)) as Arc<dyn CallerAuthorizer>;
        let access = AccessControl::new([file], Arc::new(NoSessions), unknown);
        let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static("Bearer token"))]);
        let path = "/agents/prod/prometheus/api/v1/query".parse().unwrap();
        let target = Target::parse(&path, &UrlPathPrefix::default()).unwrap();
        let authorized = access.authorize(&headers, &target, IpAddr::V4(Ipv4Addr::LOCALHOST));
        authorized.now_or_never().unwrap().unwrap().grant
    }

    #[test]
    fn query_of_a_restricted_caller_needs_a_type_that_restricts_it() {
        let (grant, id) = (grant(), HeaderValue::from_static("1"));
        let request = |service: &str| {
            let destination = Destination {
                agent: AgentId(1),
                name: None,
                project_path: None,
                service: service.parse().unwrap(),
                class: RequestClass::Short,
            };
            let uri = Uri::from_static("/api/v1/query");
            let authorized = AuthorizedRequest {
                id: &id,
                client: IpAddr::V4(Ipv4Addr::LOCALHOST),
                method: &Method::GET,
                uri: &uri,
                upgrade: false,
                grant: &grant,
                destination: &destination,
                environment: None,
            };
            let types = RequestTypes::with(Vec::new());
            types
                .restriction(authorized)
                .map(|kind| kind.map(RequestType::name))
                .map_err(|error| error.reason)
        };
        assert_eq!(request("prometheus"), Err(Reason::NotEnforceable));
        assert_eq!(request("prometheus.thanos"), Err(Reason::NotEnforceable));
        assert_eq!(request("kubernetes"), Ok(None));
    }

    #[test]
    fn application_is_behind_the_proxy_of_a_pod_a_service_or_a_node() {
        for (path, expected) in [
            ("/api/v1/namespaces/a/services/http:web:80/proxy/socket", true),
            ("/api/v1/namespaces/a/pods/b/proxy", true),
            ("/api/v1/nodes/c/proxy/metrics", true),
            ("/api/v1/namespaces/a/pods/proxy", false),
            ("/api/v1/namespaces/a/pods/b/log", false),
            ("/api/v1/namespaces/a/configmaps/b/proxy", false),
            ("/apis/v1/namespaces/a/services/b/proxy", false),
            ("/api/v1/namespaces/services/proxy", false),
            ("/api/v1/nodes", false),
            ("/", false),
        ] {
            assert_eq!(Kubernetes.is_application(path), expected, "{path}");
        }
    }
}
