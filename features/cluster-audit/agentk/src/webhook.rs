//! Receives the audit events of the API server, which sends them to the webhook of `--audit-webhook-config-file`.
//!
//! ```text
//!   API server ── POST /audit, an EventList ──► receiver: event by event ──► queue ──► thread ──► ring of files ──► AuditHandler
//! ```
//!
//! Clients need a certificate of the authority that the owner of the cluster names. The API server sends batches, buffers some of them
//! while this listener is away, and drops the others: its metric `apiserver_audit_error_total` counts those.

mod metrics;
mod options;
mod receiver;
mod repeated;
mod writer;

use std::{
    convert::Infallible,
    io,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use agentk_core::{FileFollowers, ListenTls, listen::LimitedListener};
use anyhow::Context as _;
use bytes::Bytes;
use cluster_audit::{Ring, RingView};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use process::LogLimiter;
use prometheus_client::registry::Registry;
use strangers::Stranger;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

pub(crate) use self::options::AuditOptions;
use self::{
    metrics::AuditMetrics,
    receiver::{ReceiveError, Receiver},
    writer::RingWriter,
};
use super::health::AuditHealth;

/// The path of the webhook.
const PATH: &str = "/audit";
/// The most connections. The API server keeps few of them, and its connections replace those of clients without a certificate.
const MAX_CONNECTIONS: usize = 128;
/// The time for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);
/// The time for the head of the first request of a connection.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The time between two requests. The API server closes its connections after 90 seconds: a connection that is closed here first could
/// lose a request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// The time for requests in flight after the signal to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// The period in which a failing disk, and certificates that are refused, are logged once.
const LOG_PERIOD: Duration = Duration::from_secs(60);

/// A webhook that is ready to run.
#[derive(Debug)]
pub(crate) struct AuditWebhook {
    address: SocketAddr,
    tls: ListenTls,
    receiver: Arc<Receiver>,
    writer: RingWriter,
}

/// A webhook whose address is bound.
#[derive(Debug)]
pub(crate) struct BoundAuditWebhook {
    webhook: AuditWebhook,
    socket: TcpListener,
}

impl AuditWebhook {
    /// Builds the webhook that the options describe, or `None` if they have no address. It reads certificates and opens the ring, which
    /// blocks.
    ///
    /// # Errors
    ///
    /// A file is invalid, or the directory cannot be used; the error names the flag.
    pub(crate) fn build(
        options: AuditOptions,
        health: &Arc<AuditHealth>,
        registry: &mut Registry,
        followers: &mut FileFollowers,
    ) -> anyhow::Result<Option<Self>> {
        let Some((address, tls)) = audit_listener(&options)? else { return Ok(None) };
        let directory = required(options.audit_directory, "--audit-directory")?;
        let check = tls.clone();
        followers.check("--audit-certificate-file", tls.files(), move || check.reload());
        let ring = Ring::open(&directory, options.audit_max_bytes).with_context(|| {
            let user = rustix::process::geteuid().as_raw();
            format!("--audit-directory: {} cannot be used by the user {user}", directory.display())
        })?;
        AuditMetrics::register_state(registry, &ring, health);
        let metrics = AuditMetrics::register(registry);
        let (writer, queue) = RingWriter::start(ring, metrics.clone(), Arc::clone(health));
        let receiver = Arc::new(Receiver::new(queue, metrics));
        Ok(Some(Self { address, tls, receiver, writer }))
    }

    /// Returns the events that are kept.
    pub(crate) fn view(&self) -> RingView {
        self.writer.view()
    }

    /// Binds the address.
    ///
    /// # Errors
    ///
    /// The address cannot be bound.
    pub(crate) fn bind(self) -> anyhow::Result<BoundAuditWebhook> {
        let socket = process::listen(self.address);
        let socket = socket.with_context(|| format!("cannot listen on {} (--audit-listen)", self.address))?;
        tracing::info!(address = %socket.local_addr()?, "receiving audit events of the API server");
        Ok(BoundAuditWebhook { webhook: self, socket })
    }
}

impl BoundAuditWebhook {
    /// Receives events until `shutdown`. Requests in flight are finished within some seconds, and all events that were received are
    /// written then.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let Self { webhook: AuditWebhook { tls, receiver, writer, .. }, socket } = self;
        let connections = accept(socket, tls, receiver, shutdown).await;
        let _ = timeout(STOP_TIMEOUT, connections.join_all()).await;
        // The queue ends with the last connection.
        let _ = timeout(STOP_TIMEOUT, writer.finished()).await;
    }
}

/// Returns the address and the certificates that the options describe, or `None` if they have no address. It reads the certificates, which
/// blocks.
///
/// # Errors
///
/// A flag is missing, or its file is invalid; the error names the flag.
pub(crate) fn audit_listener(options: &AuditOptions) -> anyhow::Result<Option<(SocketAddr, ListenTls)>> {
    let Some(address) = options.audit_listen else { return Ok(None) };
    let certificate = required(options.audit_certificate_file.clone(), "--audit-certificate-file")?;
    let key = required(options.audit_certificate_key_file.clone(), "--audit-certificate-key-file")?;
    let authority = required(options.audit_client_ca_file.clone(), "--audit-client-ca-file")?;
    let tls = ListenTls::from_flags("audit", certificate, key, Some(authority))?;
    Ok(Some((address, tls)))
}

fn required(file: Option<PathBuf>, flag: &str) -> anyhow::Result<PathBuf> {
    file.with_context(|| format!("--audit-listen needs {flag}"))
}

/// Accepts connections until `shutdown`. Returns those that are open then, which end after the request in flight.
async fn accept(
    listener: TcpListener,
    tls: ListenTls,
    receiver: Arc<Receiver>,
    shutdown: CancellationToken,
) -> JoinSet<()> {
    let full = receiver.metrics().requests("limit");
    let listener = LimitedListener::new("audit", listener, MAX_CONNECTIONS, full);
    let refusals = Arc::new(LogLimiter::<()>::new(LOG_PERIOD));
    let stopping = shutdown.clone();
    let serve_connection = move |tcp, peer: SocketAddr, stranger: Arc<Stranger>| {
        let (tls, receiver, refusals) = (tls.clone(), Arc::clone(&receiver), Arc::clone(&refusals));
        let stopping = stopping.clone();
        async move {
            let io = match authenticate(tcp, tls).await {
                Ok(io) => io,
                Err(error) => return report_handshake(&error, peer, &receiver, &refusals),
            };
            stranger.admit();
            if let Err(error) = serve(io, peer.ip(), &receiver, &stopping).await {
                tracing::debug!(%peer, %error, "a connection failed");
            }
        }
    };
    listener.serve(&shutdown, serve_connection).await
}

/// Returns the connection of a client with a certificate of the authority.
async fn authenticate(tcp: TcpStream, tls: ListenTls) -> io::Result<impl AsyncRead + AsyncWrite + Unpin> {
    let accepted = timeout(HANDSHAKE_TIMEOUT, tls.accept(tcp)).await;
    accepted.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut)))
}

/// Counts a handshake that failed, and logs it if the client has no certificate of the authority. Strangers may cause any number of them.
fn report_handshake(error: &io::Error, peer: SocketAddr, receiver: &Receiver, refusals: &LogLimiter<()>) {
    receiver.metrics().count_request("tls");
    if !is_refused_certificate(error) {
        tracing::debug!(%peer, %error, "a TLS handshake failed");
    } else if let Some(suppressed) = refusals.admit((), Instant::now()) {
        tracing::warn!(
            %peer,
            %error,
            suppressed,
            "a client's certificate was refused: --audit-client-ca-file must be the authority of the client certificate in the \
             kubeconfig of --audit-webhook-config-file"
        );
    }
}

/// Returns whether a handshake failed because of the client's certificate, or because the client has none. A port scanner that sends other
/// bytes than TLS fails earlier.
fn is_refused_certificate(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    matches!(cause, Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented))
}

/// Serves the requests of a connection until it ends or is idle for too long.
async fn serve(
    io: impl AsyncRead + AsyncWrite + Unpin,
    address: IpAddr,
    receiver: &Receiver,
    shutdown: &CancellationToken,
) -> hyper::Result<()> {
    let has_request = CancellationToken::new();
    let service = service_fn(async |request| {
        Ok::<_, Infallible>(respond(receiver, address, request, &has_request).await)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = pin!(connection);
    let without_request = async {
        if timeout(FIRST_REQUEST_TIMEOUT, has_request.cancelled()).await.is_ok() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        ended = connection.as_mut() => ended,
        () = without_request => Ok(()),
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    }
}

async fn respond(
    receiver: &Receiver,
    address: IpAddr,
    request: Request<Incoming>,
    has_request: &CancellationToken,
) -> Response<Full<Bytes>> {
    let answer = |status: StatusCode, text: String| {
        let mut response = Response::new(Full::from(text));
        *response.status_mut() = status;
        response
    };
    if request.uri().path() != PATH || request.method() != Method::POST {
        receiver.metrics().count_request("invalid");
        return answer(StatusCode::NOT_FOUND, format!("the API server posts its audit events to {PATH}\n"));
    }
    has_request.cancel();
    let (result, status, text) = match receiver.receive(address, request.into_body()).await {
        Ok(()) => ("ok", StatusCode::OK, String::new()),
        Err(error @ ReceiveError::Timeout) => ("timeout", StatusCode::REQUEST_TIMEOUT, format!("{error}\n")),
        Err(error) => ("invalid", StatusCode::BAD_REQUEST, format!("{error}\n")),
    };
    receiver.metrics().count_request(result);
    answer(status, text)
}

#[cfg(test)]
mod tests;
