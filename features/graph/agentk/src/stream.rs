//! The response to a caller that follows the graph.

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use agentk_core::{
    policy::PolicyEnforcer,
    services::{
        ServiceError,
        caller_permits::{CallerPermit, CallerPermits, NoPermit},
        response::{JSON_LINES, bad_request, stream_response},
    },
};
use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::stream;
use http::{HeaderMap, Response};
use proto::{
    Reason,
    graph::{GraphEvent, Token},
    header::{LAST_EVENT_ID, accepts_gzip, prefers},
    impersonation::Identity,
};
use resource_graph::{Cache, Graph, QueryError, Shown, Viewer, wait_until};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};
use tunnel::Body;

use super::{
    LOAD_TIMEOUT, MAX_VIEWERS, Parameters, View, changed, gzip::GzipStream, gzip_response, now,
    parameters::Watched, vary,
};

/// The type of server-sent events.
const EVENT_STREAM: &str = "text/event-stream";
/// Changes within this time are sent together.
const COALESCE: Duration = Duration::from_millis(50);
/// The time that is added to it for each caller that follows: the cost of all of them together grows slower than their number.
const COALESCE_PER_VIEWER: Duration = Duration::from_millis(2);
/// The same for groups, which are computed from all objects.
const COALESCE_GROUPS: Duration = Duration::from_millis(500);
/// The same for views, which kas may follow all the time.
const COALESCE_VIEWS: Duration = Duration::from_secs(2);
/// The time between two questions about what the caller may see.
const REVIEW: Duration = Duration::from_secs(30);
/// The time after which a line says that nothing has happened.
const ALIVE: Duration = Duration::from_secs(15);

/// A caller that follows the graph.
struct Follower {
    view: View,
    viewer: Viewer,
    identity: Identity,
    parameters: Parameters,
    changes: watch::Receiver<u64>,
    policy: Option<watch::Receiver<()>>,
    /// The labels of namespaces, by which the policy may select.
    labels: Option<watch::Receiver<()>>,
    review: Instant,
    /// The number of resources of the graph to which the rights of the caller are known.
    reviewed: usize,
    /// Lines that are sent before all others.
    first: Vec<GraphEvent>,
    /// The lines are events of `text/event-stream`.
    sse: bool,
    /// Compresses the lines, if the caller accepts that.
    gzip: Option<GzipStream>,
    /// One for each caller that may follow.
    viewers: CallerPermits,
    _permit: CallerPermit,
}

/// Returns the response, whose body never ends by itself while the cache is there.
pub(super) async fn respond(
    viewers: &CallerPermits,
    policy: Option<&Arc<PolicyEnforcer>>,
    view: View,
    identity: Identity,
    parameters: Parameters,
    headers: &HeaderMap,
) -> Result<Response<Body>, ServiceError> {
    let permit = viewers.try_acquire(identity.clone()).map_err(|reason| {
        let what = match reason {
            NoPermit::All => {
                format!("{MAX_VIEWERS} callers follow the graph at this pod of agentk, which is the most")
            }
            NoPermit::Share(share) => format!(
                "this caller has its share of the streams that other callers leave, which is {share} now"
            ),
        };
        ServiceError::new(Reason::TooManyRequests, what)
    })?;
    // Subscribed first, so that no change is missed.
    let (changes, labels) = (view.cache.changes(), policy.map(|policy| policy.labels().announcements()));
    let policy = policy.map(|policy| policy.changes());
    let _ = timeout(LOAD_TIMEOUT, view.cache.loaded()).await;
    let reviewed = view.cache.read(Graph::resource_count);
    let access = view.access(&identity, &parameters.query).await?;
    let view = View { reviews: view.reviews.for_stream(), ..view };
    let since = position(headers, parameters.since, &view.cache);
    let shown = match parameters.watched {
        Watched::Objects => Shown::Objects,
        Watched::Groups => Shown::Groups,
        Watched::Views => Shown::Views(Arc::clone(view.cache.section())),
    };
    let created = view.cache.read(|graph| {
        parameters.query.check(graph)?;
        Ok(Viewer::new(graph, parameters.query.clone(), shown, access, since))
    });
    let (viewer, begin) = created.map_err(|error: QueryError| bad_request(&error.to_string()))?;
    let sse = prefers(headers, EVENT_STREAM, JSON_LINES);
    let follower = Follower {
        view,
        viewer,
        identity,
        parameters,
        changes,
        policy,
        labels,
        review: Instant::now() + REVIEW,
        reviewed,
        first: vec![begin],
        sse,
        gzip: accepts_gzip(headers).then(GzipStream::new),
        viewers: viewers.clone(),
        _permit: permit,
    };
    let is_compressed = follower.gzip.is_some();
    let lines = stream::unfold(Some(follower), async |follower| {
        let mut follower = follower?;
        match follower.next().await {
            ControlFlow::Continue(lines) => Some((lines, Some(follower))),
            ControlFlow::Break(()) => Some((follower.gzip.take()?.finish(), None)),
        }
    });
    let response = stream_response(if sse { EVENT_STREAM } else { JSON_LINES }, lines);
    let response = vary(response, "accept, accept-encoding");
    Ok(if is_compressed { gzip_response(response) } else { response })
}

/// Returns the position after which a reader continues, and whether it is one of this cache. A browser that connects again sends the first
/// address and the last id. It would give up after an error, so that an id that is no token begins anew.
fn position(headers: &HeaderMap, parameter: Option<Token>, cache: &Cache) -> Option<(Token, bool)> {
    let last = headers.get(LAST_EVENT_ID).filter(|last| !last.is_empty());
    let token = match last {
        Some(last) => last.to_str().ok().and_then(|last| last.parse().ok()),
        None => Some(parameter?),
    };
    Some(token.map_or_else(|| (cache.token(0), false), |token| (token, cache.is_own(&token))))
}

impl Follower {
    /// Returns the next lines, once there are some.
    async fn next(&mut self) -> ControlFlow<(), Bytes> {
        let alive = Instant::now() + ALIVE;
        loop {
            if self.view.ended.is_cancelled() {
                // The caller connects again, and gets a new snapshot.
                return ControlFlow::Break(());
            }
            self.changes.mark_unchanged();
            if self.view.cache.read(Graph::resource_count) != self.reviewed {
                // The cluster has a new kind.
                self.review().await?;
            }
            let cache = &self.view.cache;
            let viewer = &mut self.viewer;
            let mut events = std::mem::take(&mut self.first);
            events.extend(cache.read(|graph| viewer.next(graph, |sequence| cache.token(sequence), now())));
            if !events.is_empty() {
                return self.encode(&events).await;
            }
            tokio::select! {
                _ = self.changes.changed() => {
                    sleep(self.coalesce()).await;
                }
                () = wait_until(self.viewer.due()) => {}
                () = sleep_until(self.review) => self.review().await?,
                () = changed(&mut self.policy) => self.review().await?,
                () = changed(&mut self.labels) => self.review().await?,
                () = self.view.ended.cancelled() => {}
                () = sleep_until(alive) => {
                    return self.encode(&[GraphEvent::Alive {}]).await;
                }
            }
        }
    }

    /// Returns how long changes are collected before they are sent.
    fn coalesce(&self) -> Duration {
        match self.parameters.watched {
            Watched::Objects if self.parameters.query.group.is_none() => {
                let viewers = self.viewers.used();
                COALESCE + COALESCE_PER_VIEWER * u32::try_from(viewers).unwrap_or(0)
            }
            Watched::Objects | Watched::Groups => COALESCE_GROUPS,
            Watched::Views => COALESCE_VIEWS,
        }
    }

    /// Asks again what the caller may see. Without an answer the stream ends, because an error is no permission.
    async fn review(&mut self) -> ControlFlow<()> {
        self.review = Instant::now() + REVIEW;
        self.reviewed = self.view.cache.read(Graph::resource_count);
        match self.view.access(&self.identity, &self.parameters.query).await {
            Ok(access) => {
                let viewer = &mut self.viewer;
                self.first = self.view.cache.read(|graph| viewer.set_access(graph, access));
                ControlFlow::Continue(())
            }
            Err(error) => {
                tracing::warn!(%error, "a stream of the graph ends, because the rights of its caller are not known");
                ControlFlow::Break(())
            }
        }
    }

    async fn encode(&mut self, events: &[GraphEvent]) -> ControlFlow<(), Bytes> {
        let mut lines = BytesMut::new().writer();
        for event in events {
            let text = serde_json::to_string(event).expect("it has keys that are text");
            // The id lets a browser continue with Last-Event-ID.
            let id = match event {
                GraphEvent::Commit { token } if self.sse => format!("id: {token}\n"),
                _ => String::new(),
            };
            let line = if self.sse { format!("{id}data: {text}\n\n") } else { text + "\n" };
            lines.get_mut().put_slice(line.as_bytes());
        }
        let lines = lines.into_inner().freeze();
        let Some(gzip) = self.gzip.take() else { return ControlFlow::Continue(lines) };
        let Some((gzip, compressed)) = gzip.add(lines).await else { return ControlFlow::Break(()) };
        self.gzip = Some(gzip);
        ControlFlow::Continue(compressed)
    }
}
