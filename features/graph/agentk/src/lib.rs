//! The service `graph`: the objects of the cluster, their relations and their health.
//!
//! Nothing is loaded while nobody looks. The first request starts the cache, which is dropped half an hour after the last one. What agentk
//! loads passes the scope and the policy of the cluster's owner, as the service `graph`; what a caller sees is what the API server lets
//! the identity of the caller list and watch.
#![warn(missing_docs)]

mod check;
mod definition;
mod environments;
mod gzip;
mod metrics;
mod parameters;
mod stream;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use agentk_core::services::{
    KubernetesService, RequestHandler, ServiceError,
    caller_permits::CallerPermits,
    kube_client::{Restrictions, kube_service},
    response::{WatchResponse, bad_request, json, json_text, wrong_method},
};
use http::{
    HeaderValue, Method, Request, Response,
    header::{CONTENT_ENCODING, VARY},
};
use kube::Client;
use parking_lot::Mutex;
use proto::{
    InstanceId, Reason, ServiceName,
    agent_configuration::graph::GraphSection,
    graph::{
        APPLICATIONS_PATH, CAPACITY_PATH, COMPONENTS_PATH, ENVIRONMENTS_PATH, GROUPS_PATH, HEALTH_PATH,
        OBJECTS_PATH, STATUS_PATH, TREE_PATH, VIEWS_PATH, ViewList, WATCH_PATH,
    },
    header::accepts_gzip,
    impersonation::Identity,
};
use resource_graph::{Access, Cache, CacheConfig, Query, RateLimit, Reviews};
use tokio::{
    sync::watch,
    task::AbortHandle,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tunnel::Body;

pub use self::definition::DEFINITION;
use self::parameters::Parameters;
pub(crate) use self::{environments::WatchedEnvironments, metrics::GraphMetrics};

/// The time for which the cache stays after the last request.
const IDLE: Duration = Duration::from_secs(30 * 60);
/// The time between two looks at idle caches.
const LOOK: Duration = Duration::from_secs(60);
/// The longest wait of a request until the objects are loaded. Then the response says what is missing.
const LOAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The most callers that follow the graph at the same time. One caller has half of them at most.
const MAX_VIEWERS: usize = 64;

/// Serves callers. Clones share their state.
#[derive(Clone, Debug)]
pub(crate) struct GraphHandler(Arc<GraphService>);

/// The cache while somebody looks, and the questions about callers.
pub(crate) struct GraphService {
    kubernetes: KubernetesService,
    restrictions: Restrictions,
    instance: InstanceId,
    /// Section `graph` of the agent's configuration.
    section: watch::Sender<Arc<GraphSection>>,
    environments: watch::Sender<Arc<WatchedEnvironments>>,
    running: Mutex<Running>,
    viewers: CallerPermits,
}

#[derive(Debug, Default)]
struct Running {
    current: Option<CurrentCache>,
    /// The number of caches before the next one.
    generation: u64,
}

/// A cache, and the task that keeps it up to date.
#[derive(Debug)]
struct CurrentCache {
    cache: Arc<Cache>,
    reviews: Reviews,
    basis: Basis,
    used: Instant,
    task: AbortHandle,
    /// Cancels [`View::ended`] when the cache is dropped.
    _ended: DropGuard,
    ended: CancellationToken,
}

/// The settings from which a cache is made. With another basis, there has to be another cache.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Basis {
    /// The namespaces to which agentk is limited.
    namespaces: Option<Vec<String>>,
    section: Arc<GraphSection>,
}

/// The cache and the reviews for one request.
#[derive(Clone, Debug)]
struct View {
    cache: Arc<Cache>,
    reviews: Reviews,
    /// Cancelled when the cache is not updated any more.
    ended: CancellationToken,
}

impl CurrentCache {
    fn view(&self) -> View {
        let Self { cache, reviews, ended, .. } = self;
        View { cache: Arc::clone(cache), reviews: reviews.clone(), ended: ended.clone() }
    }
}

impl Drop for CurrentCache {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl GraphService {
    /// Returns the service, which loads nothing yet.
    pub(crate) fn new(
        kubernetes: KubernetesService,
        restrictions: Restrictions,
        instance: InstanceId,
    ) -> Arc<Self> {
        Arc::new(Self {
            kubernetes,
            restrictions,
            instance,
            section: watch::Sender::default(),
            environments: watch::Sender::default(),
            running: Mutex::default(),
            viewers: CallerPermits::new(MAX_VIEWERS),
        })
    }

    /// Applies the section of the agent's configuration. With another section the cache is loaded again.
    pub(crate) fn set_section(&self, section: GraphSection) {
        self.section.send_if_modified(|known| {
            let is_new = **known != section;
            if is_new {
                *known = Arc::new(section);
            }
            is_new
        });
    }

    /// Drops the cache when nobody has looked for half an hour, and at once when the scope or the configuration changes. The future never
    /// completes.
    pub(crate) async fn run(&self) {
        let mut scope = self.restrictions.scope.as_ref().map(|scope| scope.changes());
        let mut section = Some(self.section.subscribe());
        loop {
            tokio::select! {
                () = sleep(LOOK) => {}
                () = changed(&mut scope) => {}
                () = changed(&mut section) => {}
            }
            let basis = self.basis();
            let mut running = self.running.lock();
            let busy = self.viewers.used() > 0;
            let is_over =
                |current: &CurrentCache| current.basis != basis || (!busy && current.used.elapsed() >= IDLE);
            if running.current.as_ref().is_some_and(is_over) {
                tracing::info!("graph of the cluster dropped");
                running.current = None;
            }
        }
    }

    /// Returns the cache, which begins to load if there is none.
    fn view(&self) -> View {
        let basis = self.basis();
        let mut running = self.running.lock();
        let running = &mut *running;
        let current = running.current.take().filter(|current| current.basis == basis);
        let current = running.current.insert(current.unwrap_or_else(|| {
            running.generation += 1;
            self.start(basis, running.generation)
        }));
        current.used = Instant::now();
        current.view()
    }

    /// Returns the cache if there is one. It counts as no request.
    fn loaded_view(&self) -> Option<View> {
        let basis = self.basis();
        let running = self.running.lock();
        running.current.as_ref().filter(|current| current.basis == basis).map(CurrentCache::view)
    }

    fn start(&self, basis: Basis, generation: u64) -> CurrentCache {
        tracing::info!("loading the graph of the cluster");
        let service = kube_service(ServiceName::GRAPH, self.kubernetes.clone(), &self.restrictions);
        let cache = Arc::new(Cache::new(CacheConfig {
            client: Client::new(RateLimit::new(service), "default"),
            namespaces: basis.namespaces.clone(),
            section: Arc::clone(&basis.section),
            instance: self.instance,
            generation,
        }));
        let own = kube_service(ServiceName::GRAPH, self.kubernetes.clone(), &Restrictions::default());
        let mut reviews = Reviews::new(Client::new(own, "default"));
        if let Some(policy) = self.restrictions.policy.clone() {
            reviews = reviews.with_restriction(move |request| policy.permits(ServiceName::GRAPH, request));
        }
        let loading = Arc::clone(&cache);
        let task = tokio::spawn(async move { resource_graph::keep_loaded(&loading).await }).abort_handle();
        let ended = CancellationToken::new();
        CurrentCache {
            cache,
            reviews,
            basis,
            used: Instant::now(),
            task,
            _ended: ended.clone().drop_guard(),
            ended,
        }
    }

    /// Returns what a cache is made from now.
    fn basis(&self) -> Basis {
        let scope = self.restrictions.scope.as_ref().and_then(|scope| scope.in_force());
        Basis { namespaces: scope.map(|scope| scope.namespaces), section: Arc::clone(&self.section.borrow()) }
    }

    /// Returns the cache while there is one, for metrics.
    fn current(&self) -> Option<Arc<Cache>> {
        self.running.lock().current.as_ref().map(|current| Arc::clone(&current.cache))
    }
}

impl View {
    /// Returns what a caller may see.
    async fn access(&self, identity: &Identity, query: &Query) -> Result<Access, ServiceError> {
        let access = self.reviews.access(&self.cache, identity, query).await;
        access.map_err(|error| ServiceError::new(Reason::ClusterMisbehaved, error))
    }
}

impl GraphHandler {
    /// Returns a handler of a service.
    pub(crate) fn new(service: Arc<GraphService>) -> Self {
        Self(service)
    }
}

impl RequestHandler for GraphHandler {
    async fn handle(&self, request: Request<Body>) -> Result<Response<Body>, ServiceError> {
        let path = request.uri().path();
        let known = [
            STATUS_PATH,
            OBJECTS_PATH,
            TREE_PATH,
            GROUPS_PATH,
            HEALTH_PATH,
            COMPONENTS_PATH,
            APPLICATIONS_PATH,
            CAPACITY_PATH,
            ENVIRONMENTS_PATH,
            VIEWS_PATH,
            WATCH_PATH,
        ];
        if !known.contains(&path) {
            let what = format!("agentk has no path {path} for the graph; it has {}", known.join(", "));
            return Err(ServiceError::new(Reason::UnknownPath, what));
        }
        if request.method() != Method::GET {
            return Err(wrong_method(path, "GET, HEAD"));
        }
        let parameters = Parameters::parse(path, request.uri().query().unwrap_or_default())
            .map_err(|error| bad_request(&error.to_string()))?;
        let identity = Identity::of_request(request.headers());
        let view = self.0.view();
        if path == WATCH_PATH {
            let mut response = stream::respond(
                &self.0.viewers,
                self.0.restrictions.policy.as_ref(),
                view,
                identity,
                parameters,
                request.headers(),
            )
            .await?;
            response.extensions_mut().insert(WatchResponse);
            return Ok(response);
        }
        if path != STATUS_PATH {
            // After this time, the response says which objects are missing.
            let _ = timeout(LOAD_TIMEOUT, view.cache.loaded()).await;
        }
        let Parameters { query, labels, limit, after, detail, .. } = &parameters;
        let access = view.access(&identity, query).await?;
        let status = (path == STATUS_PATH).then(|| view.cache.status(&access));
        let text = view.cache.read(|graph| {
            if path != CAPACITY_PATH {
                query.check(graph).map_err(|error| bad_request(&error.to_string()))?;
            }
            Ok::<_, ServiceError>(match path {
                STATUS_PATH => json(&status),
                OBJECTS_PATH => json(&graph.objects(query, &access, *limit, after.as_ref())),
                TREE_PATH => json(&graph.tree(query, &access)),
                GROUPS_PATH => json(&graph.groups(query, &access, now())),
                HEALTH_PATH => json(&graph.health(query, labels, &access, now())),
                COMPONENTS_PATH => json(&graph.components(&access)),
                APPLICATIONS_PATH => json(&graph.applications(query, &access, now(), *detail)),
                CAPACITY_PATH => json(&graph.capacity(query, &access)),
                ENVIRONMENTS_PATH => json(&graph.found_environments(&access)),
                _ => json(&ViewList { views: graph.views(&view.cache.section().views, &access) }),
            })
        })?;
        if !accepts_gzip(request.headers()) {
            return Ok(vary(json_text(text), "accept-encoding"));
        }
        let stopping = || ServiceError::new(Reason::Internal, "agentk stops");
        let compressed = gzip::compress(text).await.ok_or_else(stopping)?;
        Ok(vary(gzip_response(json_text(compressed)), "accept-encoding"))
    }
}

/// Adds `Vary`.
fn vary(mut response: Response<Body>, headers: &'static str) -> Response<Body> {
    response.headers_mut().insert(VARY, HeaderValue::from_static(headers));
    response
}

/// Adds `Content-Encoding: gzip`.
fn gzip_response(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    response
}

/// Waits for a change. The future never completes without a receiver.
async fn changed<T>(receiver: &mut Option<watch::Receiver<T>>) {
    let closed = match receiver {
        Some(receiver) => receiver.changed().await.is_err(),
        None => true,
    };
    if closed {
        std::future::pending::<()>().await;
    }
}

/// Returns the time in seconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs().try_into().unwrap_or(i64::MAX)
}

impl fmt::Debug for GraphService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphService").field("running", &self.running).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
