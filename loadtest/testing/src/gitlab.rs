//! A stand-in for the API that GitLab offers to its kas, and for that with which a user registers an agent.
//!
//! It checks each request as GitLab Rails does: the JWT, the method, the path, the headers and the shape of the body. A request
//! that a correct kas would never send is refused and recorded as a violation, so that a test fails. Its state is
//! programmable, and it can be down, slow or broken.
#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a failed step of the stand-in is a failed test"
)]

mod answer;
mod deployments;
mod endpoint;
mod handlers;
mod jwt;
mod merge_requests;
mod oauth;
mod oauth_state;
mod public;
mod registration;
mod request;
mod state;

use std::{collections::HashMap, io, sync::Arc, time::Duration};

use axum::Router;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::StatusCode;
use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
};
use tokio_util::task::AbortOnDropHandle;

pub use self::{
    endpoint::Endpoint,
    jwt::{sign_for_gitlab, sign_for_kas},
    oauth_state::OauthState,
    state::{
        AccessToken, Account, Agent, AgentAccess, AgentTokenRecord, AllowedAgent, Environment,
        GitLabDeployment, Gitaly, Job, Membership, OpenMergeRequest, PostedNote, Project, ProjectEnvironment,
        Session, State, User, sha_of_job,
    },
};

/// A failure of GitLab, for all endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Connections are closed before a response.
    Down,
    /// Each response comes this much later.
    Slow(Duration),
    /// Each response has this status and no useful body.
    Status(StatusCode),
    /// Each response is 200 with a body that is not JSON.
    Garbage,
    /// Each response is 200 with a body of this many bytes.
    Huge(usize),
    /// The internal API is switched off: 404 for each of its paths.
    SwitchedOff,
}

/// A running stand-in. Clones share its state; it stops when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct StandIn {
    shared: Arc<Shared>,
    url: String,
    _accepting: Arc<AbortOnDropHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    secret: [u8; 32],
    state: Mutex<State>,
    fault: Mutex<Option<Fault>>,
    violations: Mutex<Vec<String>>,
    requests: Mutex<HashMap<Endpoint, usize>>,
}

impl StandIn {
    /// Starts a stand-in with a random secret on a free port of the loopback interface.
    pub async fn start() -> Self {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).unwrap();
        let shared = Arc::new(Shared {
            secret,
            state: Mutex::default(),
            fault: Mutex::default(),
            violations: Mutex::default(),
            requests: Mutex::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let accepting = tokio::spawn(accept(Arc::clone(&shared), listener));
        Self { shared, url, _accepting: Arc::new(AbortOnDropHandle::new(accepting)) }
    }

    /// Returns the URL for `gitlab.address`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the text of the file that kas and GitLab share: 32 bytes in base64.
    pub fn secret(&self) -> String {
        BASE64_STANDARD.encode(self.shared.secret)
    }

    /// Serves one connection, for tests without sockets.
    pub async fn serve(&self, io: impl AsyncRead + AsyncWrite + Unpin) {
        serve(&self.shared, io).await;
    }

    /// Returns the state, for changes and for what was posted. Do not hold it across an await.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock()
    }

    /// Lets all requests fail in this way, or none.
    pub fn set_fault(&self, fault: impl Into<Option<Fault>>) {
        *self.shared.fault.lock() = fault.into();
    }

    /// Returns how many requests the endpoint received, including those that failed.
    pub fn requests(&self, endpoint: Endpoint) -> usize {
        self.shared.requests.lock().get(&endpoint).copied().unwrap_or_default()
    }

    /// Returns the requests that a correct kas would not have sent, with the rule that each of them broke.
    pub fn violations(&self) -> Vec<String> {
        self.shared.violations.lock().clone()
    }

    /// Panics if there was a violation.
    pub fn assert_no_violations(&self) {
        assert_eq!(self.violations(), Vec::<String>::new());
    }
}

impl Shared {
    fn fault(&self) -> Option<Fault> {
        self.fault.lock().clone()
    }

    fn record_violation(&self, request: &str, rule: &str) {
        self.violations.lock().push(format!("{request}: {rule}"));
    }
}

async fn accept(shared: Arc<Shared>, listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        tokio::spawn(async move { serve(&shared, stream).await });
    }
}

async fn serve(shared: &Arc<Shared>, io: impl AsyncRead + AsyncWrite + Unpin) {
    let routes: Router = handlers::router(Arc::clone(shared));
    let service = tower::service_fn(|request: http::Request<hyper::body::Incoming>| {
        let (shared, routes) = (Arc::clone(shared), routes.clone());
        async move {
            if shared.fault() == Some(Fault::Down) {
                return Err(io::Error::from(io::ErrorKind::ConnectionReset));
            }
            use tower::ServiceExt as _;
            Ok(routes.oneshot(request).await.unwrap_or_else(|never| match never {}))
        }
    });
    // The error is that of a caller that disconnected, or of the fault `Down`.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(io), TowerToHyperService::new(service)).await;
}
