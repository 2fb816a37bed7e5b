//! The rights of a caller to see objects: the API server decides, for the identity of the caller.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt as _, stream};
use http::{Request, header::CONTENT_TYPE};
use kube::{Client, core::ApiResource};
use parking_lot::Mutex;
use proto::impersonation::Identity;
use serde::Deserialize;
use serde_json::json;
use tokio::time::{Instant, timeout};

use crate::{
    access::{Access, VisibleNamespaces},
    cache::Cache,
    query::Query,
    resources::ResourceKind,
};

/// The time for which an answer counts for a request, if it is a permission and if it is not.
const ALLOWED_FOR: Duration = Duration::from_secs(30);
const DENIED_FOR: Duration = Duration::from_secs(10);
/// The time for which an answer counts for an open stream, which asks every 30 s.
const STREAM_FOR: Duration = Duration::from_secs(5);
/// The time for one question.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(10);
/// The questions for one caller that are asked at the same time.
const QUESTIONS: usize = 8;
/// The most namespaces that are asked for one by one.
const MAX_NAMESPACES: usize = 200;
/// The most answers that are remembered.
const MAX_ANSWERS: usize = 50_000;

/// Asks the API server what callers may see, and remembers the answers.
#[derive(Clone)]
pub struct Reviews {
    client: Client,
    restriction: Option<Restriction>,
    /// Each answer with the time of the question.
    answers: Arc<Mutex<HashMap<Question, (bool, Instant)>>>,
    /// Only answers that are newer than this count.
    max_age: Duration,
}

type Restriction = Arc<dyn Fn(&Request<()>) -> bool + Send + Sync>;

/// The API server did not say what a caller may see.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the API server does not say what the caller may see: {0}")]
pub struct ReviewError(String);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Question {
    identity: Identity,
    verb: &'static str,
    group: String,
    resource: String,
    /// Empty for all namespaces.
    namespace: String,
}

#[derive(Deserialize)]
struct Review {
    status: ReviewStatus,
}

#[derive(Deserialize)]
struct ReviewStatus {
    #[serde(default)]
    allowed: bool,
}

impl Reviews {
    /// Asks through a client, whose identity may impersonate callers.
    pub fn new(client: Client) -> Self {
        Self { client, restriction: None, answers: Arc::default(), max_age: ALLOWED_FOR }
    }

    /// Shows callers only what they may also list and watch according to `restriction`, the policy of the cluster's owner.
    #[must_use]
    pub fn with_restriction(
        self,
        restriction: impl Fn(&Request<()>) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self { restriction: Some(Arc::new(restriction)), ..self }
    }

    /// Asks again for what may have changed while a stream was open.
    #[must_use]
    pub fn for_stream(&self) -> Self {
        Self { max_age: STREAM_FOR, ..self.clone() }
    }

    /// Returns what a caller may see of a cache. A caller without an identity of its own sees what agentk sees. `interest` are the
    /// namespaces in which the caller is interested; if it is empty, all are.
    ///
    /// # Errors
    ///
    /// The API server does not answer. This is never taken for a permission.
    pub async fn access(
        &self,
        cache: &Cache,
        identity: &Identity,
        interest: &Query,
    ) -> Result<Access, ReviewError> {
        if identity.is_agent() && self.restriction.is_none() {
            return Ok(Access::of_agent());
        }
        let everything = self.is_allowed(identity, "*", "*", "").await?;
        let questions = resources(cache, interest).into_iter().enumerate().map(async |(number, resource)| {
            let (kind, places) = resource;
            let visible = self.visible(identity, everything, &kind.api, places).await?;
            Ok((number, visible))
        });
        let mut answers = stream::iter(questions).buffer_unordered(QUESTIONS);
        let mut access = Access::default();
        while let Some(answer) = answers.next().await {
            if let (number, Some(visible)) = answer? {
                access.allow(number, visible);
            }
        }
        Ok(access)
    }

    /// Returns the namespaces of a resource in which a caller may list and watch it. `places` are those that have objects of it.
    async fn visible(
        &self,
        identity: &Identity,
        everything: bool,
        api: &ApiResource,
        places: BTreeSet<String>,
    ) -> Result<Option<VisibleNamespaces>, ReviewError> {
        let everywhere = everything || self.is_allowed(identity, &api.group, &api.plural, "").await?;
        if everywhere && self.passes(identity, api, "") {
            return Ok(Some(VisibleNamespaces::All));
        }
        let mut visible = BTreeSet::new();
        for place in places.into_iter().take(MAX_NAMESPACES) {
            let allowed = everywhere || self.is_allowed(identity, &api.group, &api.plural, &place).await?;
            if allowed && self.passes(identity, api, &place) {
                visible.insert(place);
            }
        }
        Ok((!visible.is_empty()).then_some(VisibleNamespaces::Some(visible)))
    }

    /// Returns whether the policy lets a caller list and watch a resource.
    fn passes(&self, identity: &Identity, api: &ApiResource, namespace: &str) -> bool {
        let Some(restriction) = &self.restriction else { return true };
        let prefix = if api.group.is_empty() { "/api" } else { "/apis" };
        let place = if namespace.is_empty() { String::new() } else { format!("namespaces/{namespace}/") };
        let path = format!("{prefix}/{}/{place}{}", api.api_version, api.plural);
        ["", "?watch=true"].into_iter().all(|query| {
            let mut request = Request::get(format!("{path}{query}"));
            for (name, value) in identity.headers() {
                request = request.header(name, value);
            }
            // A path that is no URI passes no policy.
            request.body(()).is_ok_and(|request| restriction(&request))
        })
    }

    /// Returns whether a caller may list and watch a resource.
    async fn is_allowed(
        &self,
        identity: &Identity,
        group: &str,
        resource: &str,
        namespace: &str,
    ) -> Result<bool, ReviewError> {
        // agentk has listed it.
        if identity.is_agent() {
            return Ok(true);
        }
        for verb in ["list", "watch"] {
            let own = str::to_owned;
            let (group, resource, namespace) = (own(group), own(resource), own(namespace));
            if !self.answer(Question { identity: identity.clone(), verb, group, resource, namespace }).await?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn answer(&self, question: Question) -> Result<bool, ReviewError> {
        let now = Instant::now();
        if let Some(&(allowed, asked)) = self.answers.lock().get(&question)
            && now < asked + lifetime(allowed).min(self.max_age)
        {
            return Ok(allowed);
        }
        let allowed = timeout(QUESTION_TIMEOUT, self.ask(&question)).await;
        let allowed = allowed.unwrap_or_else(|_| Err(ReviewError("no response within 10 s".to_owned())))?;
        let mut answers = self.answers.lock();
        if answers.len() >= MAX_ANSWERS {
            answers.retain(|_, (allowed, asked)| now < *asked + lifetime(*allowed));
        }
        if answers.len() < MAX_ANSWERS {
            answers.insert(question, (allowed, now));
        }
        Ok(allowed)
    }

    async fn ask(&self, question: &Question) -> Result<bool, ReviewError> {
        let Question { identity, verb, group, resource, namespace } = question;
        let attributes = json!({"verb": verb, "group": group, "resource": resource, "namespace": namespace});
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        });
        let mut request = Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
            .header(CONTENT_TYPE, "application/json");
        for (name, value) in identity.headers() {
            request = request.header(name, value);
        }
        let request = request.body(review.to_string().into_bytes());
        let request = request.map_err(|error| ReviewError(error.to_string()))?;
        match self.client.request::<Review>(request).await {
            Ok(review) => Ok(review.status.allowed),
            Err(kube::Error::Api(status)) => {
                Err(ReviewError(format!("{} ({})", status.message, status.code)))
            }
            Err(error) => Err(ReviewError(error.to_string())),
        }
    }
}

fn lifetime(allowed: bool) -> Duration {
    if allowed { ALLOWED_FOR } else { DENIED_FOR }
}

/// Returns the resources of a cache, with the namespaces of their objects in which a caller is interested.
fn resources(cache: &Cache, interest: &Query) -> Vec<(ResourceKind, BTreeSet<String>)> {
    cache.read(|graph| {
        let mut places = vec![BTreeSet::new(); graph.resources().len()];
        let of_objects = graph.entries().map(|(_, entry)| (entry.resource, &*entry.facts.namespace));
        let events = graph.resources().iter().position(|resource| resource.kind.api.kind == "Event");
        let of_events =
            events.into_iter().flat_map(|events| graph.warnings.namespaces().map(move |name| (events, name)));
        for (resource, name) in of_objects.chain(of_events) {
            if !name.is_empty() && !interest.excludes_namespace(name) && !places[resource].contains(name) {
                places[resource].insert(name.to_owned());
            }
        }
        graph.resources().iter().map(|resource| resource.kind.clone()).zip(places).collect()
    })
}

impl fmt::Debug for Reviews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reviews").field("restricted", &self.restriction.is_some()).finish_non_exhaustive()
    }
}
