//! The requests of kas: the subscription, and the events.

use std::{collections::BTreeSet, sync::Arc};

use agentk_core::services::{
    RequestHandler, ServiceError,
    response::{JSON_LINES, bad_request, line, stream_response, wrong_method},
};
use futures_util::stream;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use kube_cluster::Leadership;
use proto::{
    AgentId, Reason,
    notify::{EVENTS_PATH, MAX_EVENT, ProjectEvent, SUBSCRIPTION_PATH, SUBSCRIPTION_PERIOD, Subscription},
};
use tokio::{sync::watch, time::sleep};
use tunnel::Body;

use super::Notify;

/// Serves kas itself.
#[derive(Clone, Debug)]
pub(crate) struct NotifyHandler(pub(crate) Arc<Notify>);

/// The state of a subscription.
struct Subscriber {
    notify: Arc<Notify>,
    leadership: watch::Receiver<Leadership>,
    generation: watch::Receiver<u64>,
    flux_projects: watch::Receiver<BTreeSet<String>>,
    /// The last line, if there was one.
    last: Option<Subscription>,
}

impl RequestHandler for NotifyHandler {
    async fn handle(&self, request: Request<Body>) -> Result<Response<Body>, ServiceError> {
        match (request.method(), request.uri().path()) {
            (&Method::GET, SUBSCRIPTION_PATH) => self.subscribe(&request),
            (&Method::POST, EVENTS_PATH) => self.accept(request).await,
            (_, path @ SUBSCRIPTION_PATH) => Err(wrong_method(path, "GET")),
            (_, path @ EVENTS_PATH) => Err(wrong_method(path, "POST")),
            (_, path) => {
                Err(ServiceError::new(Reason::UnknownPath, format!("agentk has no path {path} for events")))
            }
        }
    }
}

impl NotifyHandler {
    /// Answers with a line for each change of the wanted projects, and one after each period.
    fn subscribe(&self, request: &Request<Body>) -> Result<Response<Body>, ServiceError> {
        let query = request.uri().query().unwrap_or_default();
        let agent = query.strip_prefix("agent=").and_then(|id| id.parse::<AgentId>().ok());
        let agent = agent.ok_or_else(|| bad_request("the query must be agent=<id of the agent>"))?;
        self.0.leader.set_agent(agent);
        let subscriber = Subscriber {
            leadership: self.0.leader.subscribe(),
            generation: self.0.generation.subscribe(),
            flux_projects: self.0.flux_projects.subscribe(),
            notify: Arc::clone(&self.0),
            last: None,
        };
        let lines = stream::unfold(subscriber, async |mut subscriber| {
            let next = subscriber.next().await?;
            Some((line(&next), subscriber))
        });
        Ok(stream_response(JSON_LINES, lines))
    }

    /// Accepts an event. The effects begin at once, and the response does not wait for them.
    async fn accept(&self, request: Request<Body>) -> Result<Response<Body>, ServiceError> {
        let body = Limited::new(request.into_body(), MAX_EVENT).collect().await;
        let body = body.map_err(|error| bad_request(&format!("the event is cut or too long: {error}")))?;
        let event: ProjectEvent = serde_json::from_slice(&body.to_bytes())
            .map_err(|error| bad_request(&format!("the event is invalid: {error}")))?;
        if !self.0.leader.is_leading() {
            return Err(bad_request("another pod of agentk leads now"));
        }
        self.0.accept(&event);
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        Ok(response)
    }
}

impl Subscriber {
    /// Returns the next line, or `None` when agentk stops.
    async fn next(&mut self) -> Option<Subscription> {
        loop {
            self.leadership.mark_unchanged();
            let generation = *self.generation.borrow_and_update();
            self.flux_projects.mark_unchanged();
            let wanted = Subscription { projects: self.notify.wanted(), generation };
            if self.last.as_ref() != Some(&wanted) {
                self.last = Some(wanted.clone());
                return Some(wanted);
            }
            tokio::select! {
                () = sleep(SUBSCRIPTION_PERIOD) => return Some(wanted),
                () = self.notify.leader.stopping() => return None,
                changed = self.leadership.changed() => changed.ok()?,
                changed = self.generation.changed() => changed.ok()?,
                changed = self.flux_projects.changed() => changed.ok()?,
            }
        }
    }
}
