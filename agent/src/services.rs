//! The request types that this agent serves: a name and a handler each.

use std::{collections::BTreeMap, fmt, pin::Pin, sync::Arc};

use http::{Request, Response};
use proto::ServiceName;
use tunnel::Body;

use crate::policy::Guard;

/// What a handler is doing. Dropped when the caller leaves.
pub type Handling = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// Answers the requests of one service.
///
/// A failure of ours is an answer, too: [`crate::Failure::into_response`]. An accepted upgrade is a 101 that holds a
/// [`tunnel::upgrade::Outside`].
pub trait Handler: Send + Sync + 'static {
    /// Answers one request.
    fn handle(&self, request: Request<Body>) -> Handling;
}

/// Handlers by name. Cheap to clone.
#[derive(Clone, Default)]
pub struct Services(BTreeMap<ServiceName, Arc<dyn Handler>>);

impl<F, A> Handler for F
where
    F: Fn(Request<Body>) -> A + Send + Sync + 'static,
    A: Future<Output = Response<Body>> + Send + 'static,
{
    fn handle(&self, request: Request<Body>) -> Handling {
        Box::pin(self(request))
    }
}

impl Services {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one, or replaces the one of the same name.
    ///
    /// # Panics
    ///
    /// If `name` is no service name, or `control`, which each tunnel answers itself.
    #[must_use]
    pub fn with(mut self, name: &str, handler: impl Handler) -> Self {
        assert_ne!(name, ServiceName::CONTROL, "control is agentk's own");
        let name = name.parse().expect("a constant that is a service name");
        self.0.insert(name, Arc::new(handler));
        self
    }

    /// Every request passes `guard` before it reaches its handler.
    #[must_use]
    pub fn guarded(self, guard: &Arc<Guard>) -> Self {
        let guarded = self.0.into_iter().map(|(name, handler)| {
            let handler: Arc<dyn Handler> = Arc::new(guard.before(name.clone(), handler));
            (name, handler)
        });
        Self(guarded.collect())
    }

    /// What the hello announces.
    pub fn names(&self) -> Vec<ServiceName> {
        self.0.keys().cloned().collect()
    }

    pub(crate) fn into_handlers(self) -> impl Iterator<Item = (ServiceName, Arc<dyn Handler>)> {
        self.0.into_iter()
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
