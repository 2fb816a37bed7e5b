//! What is counted between replicas.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// The handles. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PeerMetrics {
    routes: [Counter; Route::WORDS.len()],
    requests: [Counter; Passed::WORDS.len()],
    questions: [Counter; Asked::WORDS.len()],
    served: [Counter; Served::WORDS.len()],
    /// Open connections to other replicas.
    pub connections: Gauge,
    /// Owners that were asked because the one before had not answered yet.
    pub hedges: Counter,
    /// Whether other replicas reach this one: 1 or 0. Registered where there may be some.
    pub reachable: Gauge,
    /// Times that a replica fell out of good standing.
    pub outliers: Counter,
}

/// Which way a request was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Into a tunnel that ends here.
    Local,
    /// To another replica.
    Peer,
}

/// What became of a request that was sent to another replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// Its answer began.
    Answered,
    /// The replica does not hold the agent any more, and did not look at it.
    Refused,
    /// Nobody knows.
    Lost,
}

/// What another replica answered to "do you hold this agent".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// It does.
    Holds,
    /// It does not: the directory was behind.
    Absent,
    /// It does, and does not take this request.
    Declined,
    /// No connection to it.
    Unreachable,
    /// Nothing, within the time that it had.
    Silent,
    /// Something that is no answer.
    Garbage,
    /// It did not prove who it is.
    Untrusted,
}

/// What became of a request that another replica sent here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// A question, answered.
    Asked,
    /// Sent into a tunnel.
    Passed,
    /// No tunnel here takes it.
    Absent,
    /// Not something that a replica says.
    Malformed,
    /// Without a seal, or with one that does not fit.
    Forged,
    /// Sent too long ago, or a clock is wrong.
    Expired,
    /// Seen before.
    Replayed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabel {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

impl Route {
    const WORDS: [&str; 2] = ["local", "peer"];
}

impl Passed {
    const WORDS: [&str; 3] = ["answered", "refused", "lost"];
}

impl Asked {
    const WORDS: [&str; 7] = ["holds", "absent", "declined", "unreachable", "silent", "garbage", "untrusted"];
}

impl Served {
    const WORDS: [&str; 7] = ["asked", "passed", "absent", "malformed", "forged", "expired", "replayed"];

    /// For logs.
    pub const fn as_str(self) -> &'static str {
        Self::WORDS[self as usize]
    }
}

impl PeerMetrics {
    /// Registers everything; each counter is there from the start.
    pub(super) fn register(registry: &mut Registry) -> Self {
        let routes = Family::<RouteLabel, Counter>::default();
        registry.register("kas_routes", "Requests that were sent, by the way they went", routes.clone());
        let metrics = Self {
            routes: Route::WORDS.map(|kind| routes.get_or_create(&RouteLabel { kind }).clone()),
            requests: results(
                registry,
                "kas_peer_requests",
                "Requests sent to other replicas",
                Passed::WORDS,
            ),
            questions: results(
                registry,
                "kas_peer_questions",
                "Replicas asked whether they hold an agent",
                Asked::WORDS,
            ),
            served: results(registry, "kas_peer_served", "Requests of other replicas", Served::WORDS),
            connections: Gauge::default(),
            reachable: Gauge::default(),
            hedges: Counter::default(),
            outliers: Counter::default(),
        };
        registry.register(
            "kas_peer_connections",
            "Open connections to other replicas",
            metrics.connections.clone(),
        );
        registry.register(
            "kas_peer_hedges",
            "Replicas asked because the one before had not answered yet",
            metrics.hedges.clone(),
        );
        registry.register(
            "kas_peer_outliers",
            "Times that a replica began to be passed over",
            metrics.outliers.clone(),
        );
        metrics
    }

    /// A request was sent this way.
    pub fn route(&self, route: Route) {
        self.routes[route as usize].inc();
    }

    /// A request that was sent to another replica is over, or its answer began.
    pub fn passed(&self, result: Passed) {
        self.requests[result as usize].inc();
    }

    /// Another replica was asked.
    pub fn asked(&self, result: Asked) {
        self.questions[result as usize].inc();
    }

    /// Another replica sent something.
    pub fn served(&self, result: Served) {
        self.served[result as usize].inc();
    }
}

fn results<const N: usize>(
    registry: &mut Registry,
    name: &'static str,
    help: &'static str,
    words: [&'static str; N],
) -> [Counter; N] {
    let family = Family::<ResultLabel, Counter>::default();
    registry.register(name, help, family.clone());
    words.map(|result| family.get_or_create(&ResultLabel { result }).clone())
}
