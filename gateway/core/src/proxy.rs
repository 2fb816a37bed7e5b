//! Serves callers. `handle` is the path of a request: validate → check access → forward → respond.
//!
//! ```text
//!  connection: hyper reads a head
//!      │ ProxyRequest { head, context }
//!      ▼
//!  serve_request: cors, trace, panics ─► handle: validate ─► check_access ─► forward ═══► agent
//!                                                                                ║
//!  caller ◄── Response<GuardedBody> ◄───────────────────────────── respond ◄═════╝
//! ```
//!
//! A `RequestContext` has the server, the connection and the body of a request, and the `RequestLog`, which has the facts that observers
//! read. A `ResponseGuard` holds its tunnel, its connection and its metrics until the response has ended.

mod budget;
mod connection;
mod fleet;
mod idle_connections;
mod request;
mod request_body;
mod request_log;
mod response;
mod server;
mod upgrade;

use std::{
    convert::Infallible,
    future::pending,
    net::{IpAddr, SocketAddr},
    panic::AssertUnwindSafe,
    pin::Pin,
    str::FromStr as _,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use cores::poll_on_wake;
use futures_util::FutureExt as _;
use http::{
    HeaderValue, Method, Request, Response, StatusCode, Uri, Version,
    header::{CONNECTION, CONTENT_LENGTH},
    uri::PathAndQuery,
};
use http_body_util::{Either, Empty};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use kas_listen::{addresses::PeerAddress, http_limits::HttpLimits, io::StallGuard, metrics::Limit};
use proto::{Reason, hop_by_hop};
use strangers::Stranger;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::sleep,
};
use tower::BoxError;
use tunnel::{CountedBody, OverheadStream};

pub use self::connection::RequestGuard;
pub use self::request::ConcurrencyPermit;
pub use self::request_log::RequestObservers;
pub use self::server::{CallerConnections, ProxyConfig, ProxyServer, RequestHandling};
use self::{
    connection::{CallerIo, ConnectionState},
    request::{ProxyRequest, RequestContext},
    response::GuardedBody,
};
use crate::{
    destination::Destination,
    forward::ForwardedResponse,
    hosts::{Route, TlsName},
};
use access::{
    AgentAttributes, AuthorizedCaller, Grant, ManagedEnvironment, RequestError,
    kill_switch::{KillSwitch, RequestAttributes},
    take_websocket_token,
};

/// The time for which a connection that was asked to close may stay without a request.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The body of a request. Its frames count in the limit of the overhead of their connection until they are read.
pub type CallerBody = CountedBody<Incoming>;

/// The result of authorization: the rights of the caller, and where its request goes.
#[derive(Debug)]
struct Access {
    grant: Arc<Grant>,
    destination: Destination,
    /// Path and query as the service receives them.
    uri: Uri,
    /// The part of the path before that, by which kas serves the agent.
    prefix: Box<str>,
    /// The caller asks for an upgrade to another protocol.
    upgrade: bool,
    /// The environment whose objects have to exist before.
    environment: Option<Arc<ManagedEnvironment>>,
}

/// The future of [`Access::ended`]. It is created once for each request, and watches it from its authorization to its last byte.
type AccessEnded = Pin<Box<dyn Future<Output = RequestError> + Send>>;

/// Handles one request.
///
/// Dropping the future cancels the request in the cluster.
async fn handle(request: ProxyRequest) -> Result<Response<GuardedBody>, RequestError> {
    let ProxyRequest { mut head, context } = request;
    request::validate(&context.server, &head)?;
    take_websocket_token(head.headers_mut())?;
    if let Some(kind) = fleet::kind(&context, &head) {
        // Boxed: most requests are about one agent.
        return Box::pin(fleet::answer(&context, &head, kind)).await;
    }
    let access = check_access(&context, &head).await?;
    let permit = ConcurrencyPermit::acquire(&context.server, &access.grant)?;
    let mut ended = access.ended(&context.server.kill_switch, context.log.client);
    let forwarding = async {
        let authorized = context.log.request();
        for hooks in &context.server.handling.hooks {
            if let Some(answer) = hooks.answer(authorized, head.headers()) {
                return Ok((ForwardedResponse::from_kas(answer?), None));
            }
            if let Some(ready) = hooks.before(authorized) {
                ready.await?;
            }
        }
        let (request, upgrade) = request::agent_request(&context, head).await?;
        let forwarded = context.server.forwarder.forward(&access.destination, request).await?;
        Ok::<_, RequestError>((forwarded, upgrade))
    };
    let forwarded = tokio::select! {
        biased;
        forwarded = forwarding => forwarded,
        // The request is dropped, which resets its stream: the cluster sees an aborted body, and never a complete one.
        error = &mut ended => Err(error.in_flight()),
    };
    let (forwarded, upgrade) = forwarded?;
    response::respond(context, ended, permit, upgrade, forwarded).await
}

/// Authenticates the caller, and authorizes its request to the agent that the path or the credential names.
async fn check_access<'a>(
    context: &'a RequestContext,
    head: &Request<()>,
) -> Result<&'a Access, RequestError> {
    let path = head.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let client = context.log.client;
    if !context.server.config.addresses.allows(client) {
        return Err(RequestError::address_not_allowed(
            client,
            "agent.kubernetes_api.listen.allowed_networks",
        ));
    }
    let target = context.route.target(&path, &context.server.config.url_path_prefix)?;
    let (switch, service) = (&context.server.kill_switch, &target.service);
    let mut request =
        RequestAttributes { address: Some(client), service, agent: None, caller: None, user: None };
    // Before the authorization, which may depend on a server that is down, or that must be spared.
    switch.check(&request)?;
    let AuthorizedCaller { grant, agent, name, project_path, login, environment } =
        context.server.access.authorize(head.headers(), &target, client).await?;
    context.guard.admit();
    request.agent =
        Some(AgentAttributes { id: agent, name: name.as_ref(), project_path: project_path.as_deref() });
    (request.caller, request.user) = (Some(grant.caller.name()), grant.caller.user.as_deref());
    let disabled = switch.check(&request);

    let upgrade = hop_by_hop::requested_upgrade(head.method(), head.headers()).is_some();
    let path = context.server.access.without_credentials(target.path);
    let uri = Uri::from_str(&path).map_err(|_| RequestError::bad_request("the path cannot be forwarded"))?;
    let prefix = outside_prefix(head.uri().path(), uri.path()).into();
    let types = &context.server.handling.types;
    let class = types.class(&target, upgrade);
    let destination = Destination { agent, name, project_path, service: target.service, class };
    let access = Access { grant, destination, uri, prefix, upgrade, environment };
    let access = context.log.authorized(types, access, login);
    // After the audit log has the caller.
    disabled?;
    Ok(access)
}

/// Returns the part of a path that kas has removed from it for the agent.
fn outside_prefix<'a>(outside: &'a str, inside: &str) -> &'a str {
    // The last slash may be missing outside.
    outside.strip_suffix(inside).unwrap_or(if inside == "/" { outside } else { "" })
}

impl Access {
    /// Completes when the caller loses its rights, when its token has expired for too long, or when a rule disables the request.
    /// Returns the error for the caller.
    fn ended(&self, kill_switch: &Arc<KillSwitch>, client: IpAddr) -> AccessEnded {
        let kill_switch = Arc::clone(kill_switch);
        let (grant, destination) = (Arc::clone(&self.grant), self.destination.clone());
        Box::pin(async move {
            let request = RequestAttributes {
                address: Some(client),
                service: &destination.service,
                agent: Some(destination.attributes()),
                caller: Some(grant.caller.name()),
                user: grant.caller.user.as_deref(),
            };
            tokio::select! {
                () = grant.revoked.cancelled() => revoked(grant.caller.name()),
                () = passed(grant.streams_end) => expired(grant.caller.name()),
                error = kill_switch.disabled(request) => error,
            }
        })
    }
}

/// Returns the error of a request in flight whose caller may do less than before.
fn revoked(caller: &str) -> RequestError {
    let what =
        format!("the token of caller {caller} was revoked, or its rights were reduced, during the request");
    RequestError::new(Reason::Forbidden, what)
}

/// Returns the error of a request in flight whose token has expired for too long.
fn expired(caller: &str) -> RequestError {
    let what = format!(
        "the OIDC token of caller {caller} expired during the request, and oidc.issuers[].stream_grace has passed"
    );
    RequestError::new(Reason::Unauthorized, what)
}

/// Completes at a time of the system's clock as it is now, or never for `None`.
async fn passed(time: Option<SystemTime>) {
    match time {
        // The timer is boxed, because most requests have none.
        Some(time) => Box::pin(sleep(time.duration_since(SystemTime::now()).unwrap_or_default())).await,
        None => pending().await,
    }
}

/// Serves a request. Each error is a response.
///
/// Requests from web pages of other origins are refused. tower-http's layer serves them and relies on the browser to refuse the
/// response: by then a request with side effects was made.
async fn serve_request(request: ProxyRequest) -> Response<GuardedBody> {
    let context = Arc::clone(&request.context);
    let server = &context.server;
    let cors = match server.config.cors.check(&request.head) {
        Ok(cors) => cors,
        Err(error) => return Box::pin(refuse(&context, &error)).await,
    };
    if let Some(response) = cors.preflight(&request.head) {
        return response.map(GuardedBody::untracked);
    }

    context.log.start_trace(&server.observers, &request.head);
    // A panic is an error of this request, and the other requests of the connection continue. The shared state is behind locks that do
    // not poison.
    let handled = AssertUnwindSafe(Box::pin(handle(request))).catch_unwind().await;
    let handled = handled.unwrap_or_else(|_| {
        Err(RequestError::new(Reason::Internal, "a defect of kas; the log of kas has the panic"))
    });
    let mut response = match handled {
        Ok(response) => response,
        // Boxed: most requests do not fail, and should not reserve memory for it.
        Err(error) => Box::pin(refuse(&context, &error)).await,
    };
    cors.apply(response.headers_mut());
    response
}

/// Builds the response to a request that kas or its agent refused or failed, and logs it.
async fn refuse(context: &RequestContext, error: &RequestError) -> Response<GuardedBody> {
    let log = &context.log;
    log.refused(&context.server.observers, error);
    let mut response =
        error.render(&context.error_format, &log.id, log.trace_id(), context.server.config.docs_url.as_ref());
    context.body.finish(context.version, response.headers_mut()).await;
    response.map(GuardedBody::untracked)
}

impl ProxyServer {
    /// Serves one connection until it ends. `peer` is its other end: a caller, or a proxy. `tls_name` is the name of kas in its
    /// TLS handshake. The connection is that of the `stranger` until a request has a valid credential.
    pub async fn serve<T>(
        self: &Arc<Self>,
        io: T,
        peer: SocketAddr,
        tls_name: TlsName,
        stranger: Arc<Stranger>,
    ) where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let address = PeerAddress::new(peer.ip());
        let answer = |request: Request<CallerBody>, guard| {
            let route = self.config.hosts.route(&request, &tls_name);
            let peer = (&address, self.config.addresses.trusted_proxies());
            serve_request(ProxyRequest::new(self, peer, route, guard, request.map(Some))).map(Ok)
        };
        self.serve_connection(io, peer, stranger, answer).await;
    }

    /// Answers one request by a path of an agent, which came over a connection of another listener, or which that listener sends
    /// for a caller, without a body. `proxies` are those of the listener whose `X-Forwarded-For` is trusted.
    pub async fn answer(
        self: &Arc<Self>,
        (peer, proxies): (&PeerAddress, &[IpNet]),
        guard: RequestGuard,
        request: Request<Option<CallerBody>>,
    ) -> Response<impl http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + use<>> {
        serve_request(ProxyRequest::new(self, (peer, proxies), Route::Path, guard, request)).await
    }

    /// Counts a stream of another listener as a request of the caller, until the permit is dropped.
    ///
    /// # Errors
    ///
    /// Returns `too-many-requests` if `max_requests_per_caller` requests of the caller are in flight.
    pub fn acquire(&self, grant: &Grant) -> Result<ConcurrencyPermit, RequestError> {
        ConcurrencyPermit::acquire(self, grant)
    }

    /// Serves one connection until it ends: `answer` responds to its requests.
    pub async fn serve_connection<T, F, Fut, B>(
        self: &Arc<Self>,
        io: T,
        peer: SocketAddr,
        stranger: Arc<Stranger>,
        answer: F,
    ) where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        F: Fn(Request<CallerBody>, RequestGuard) -> Fut,
        Fut: Future<Output = Result<Response<B>, Infallible>> + Send + 'static,
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let (limits, metrics) = (&self.config.limits, &self.observers.metrics);
        let state = Arc::new(ConnectionState::new(&metrics.connections, stranger));
        let _idle = self.connections.idle.insert(&state);
        let io = OverheadStream::of_client(io);
        let overhead = io.counter();
        let service = service_fn(|request: Request<Incoming>| {
            overhead.subtract_received_request(request.uri(), request.headers());
            let is_head = request.method() == Method::HEAD;
            let leaving =
                (request.version() < Version::HTTP_2).then(|| self.connections.group.leaving.clone());
            let request = request.map(|body| CountedBody::new(body, overhead.clone()));
            let answered = answer(request, RequestGuard::new(&state));
            async move {
                let mut response = answered.await?;
                // A load balancer sends no new connections here, and must not use this one again.
                if leaving.is_some_and(|leaving| leaving.is_cancelled())
                    && response.status() != StatusCode::SWITCHING_PROTOCOLS
                {
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(if is_head { without_body(response) } else { response.map(Either::Left) })
            }
        });
        let io = StallGuard::new(io, limits.write_stall_timeout, metrics.write_stalls.clone());
        let timeouts = metrics.limit_counter(Limit::HeadTimeout).clone();
        let io = CallerIo::new(io, Arc::clone(&state), limits.head_timeout, timeouts);
        let builder = HttpLimits::of_callers(limits.max_head_bytes, limits.max_headers).builder();
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(io), service);
        tokio::pin!(connection);
        let close = poll_on_wake(async {
            tokio::select! {
                () = self.connections.group.draining.cancelled() => {}
                () = state.closing() => {}
            }
        });
        let served = tokio::select! {
            biased;
            served = connection.as_mut() => served,
            () = close => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    biased;
                    served = connection.as_mut() => served,
                    () = poll_on_wake(state.idle(CLOSE_TIMEOUT)) => Ok(()),
                }
            }
        };
        if let Err(error) = served {
            // h2 keeps the text of an I/O error, and not its type.
            let overhead = overhead.is_exceeded().then_some(Limit::Overhead);
            if let Some(limit) = overhead.or_else(|| Limit::from_error(&*error)) {
                metrics.count_limit(limit);
            }
            tracing::debug!(%peer, error, "connection of a caller failed");
        }
    }
}

/// Returns the response to HEAD, which has the fields of that to GET (RFC 9110 section 9.3.2). hyper sends the body of one over HTTP/2.
fn without_body<B: http_body::Body<Data = Bytes>>(
    mut response: Response<B>,
) -> Response<Either<B, Empty<Bytes>>> {
    let length = response.body().size_hint().exact().filter(|length| *length > 0);
    let fields = response.headers_mut();
    if let Some(length) = length {
        fields.entry(CONTENT_LENGTH).or_insert_with(|| length.into());
    }
    response.map(|_| Either::Right(Empty::new()))
}
