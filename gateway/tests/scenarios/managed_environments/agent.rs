//! The agentk of these scenarios: its services answer as a scenario says.

use std::{collections::VecDeque, future::pending, io, sync::Arc, time::Duration};

use agentk_core::{ServiceError, Services};
use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use parking_lot::Mutex;
use proto::Reason;
use serde_json::{Value, json};
use tokio::time::sleep;
use tunnel::Body;

/// The path of a question of a user about its own rights.
pub(super) const REVIEW: &str = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";

/// The next answer of agentk.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    Fail(Reason, &'static str),
    After(Duration),
    Never,
    Garbage,
    /// The response ends in the middle of its body.
    Cut,
}

/// The services `environments` and `provision` of an agentk: what they have received, and what they answer next. They succeed by default.
#[derive(Clone, Debug, Default)]
pub(super) struct Provision(pub(super) Arc<Mutex<State>>);

#[derive(Debug, Default)]
pub(super) struct State {
    /// All requests in order, also those to the cluster.
    pub(super) requests: Vec<(String, Value)>,
    replies: VecDeque<Reply>,
    /// The answer if there is no reply.
    always: Option<Reply>,
    /// The last request had an identity.
    pub(super) impersonated: bool,
    /// The change of the RoleBinding, if the template has one.
    pub(super) binding: Option<&'static str>,
    pub(super) rights: Rights,
}

/// The answer of the API server about the rights of a job.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rights {
    /// The policy refuses the question.
    Refused,
    /// The job has them after so many answers.
    After(u32),
    Never,
}

impl Default for Rights {
    fn default() -> Self {
        Self::After(0)
    }
}

impl Provision {
    pub(super) fn services(&self) -> Services {
        let (environments, provision, kubernetes) = (self.clone(), self.clone(), self.clone());
        Services::new()
            .with_fn("environments", move |request| environments.clone().answer(request))
            .with_fn("provision", move |request| provision.clone().answer(request))
            .with_fn("kubernetes", move |request: Request<Body>| {
                let response = kubernetes.cluster(&request);
                async { response }
            })
            .with_fn("prometheus", async |_| Response::new(Body::from("series")))
    }

    /// Answers a request to the cluster.
    fn cluster(&self, request: &Request<Body>) -> Response<Body> {
        let mut state = self.0.lock();
        state.requests.push((request.uri().to_string(), Value::Null));
        if request.uri() != REVIEW {
            return Response::new(Body::from("the cluster"));
        }
        state.impersonated = request.headers().contains_key("impersonate-user");
        let own = json!({"verbs": ["create"], "apiGroups": ["authorization.k8s.io"], "resources": ["selfsubjectrulesreviews"]});
        let all = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]});
        let (status, rules) = match state.rights {
            Rights::Refused => (403, json!([])),
            Rights::After(0) => (201, json!([own, all])),
            Rights::After(more) => {
                state.rights = Rights::After(more - 1);
                (201, json!([own]))
            }
            Rights::Never => (201, json!([own])),
        };
        let review = json!({"kind": "SelfSubjectRulesReview", "status": {"resourceRules": rules}});
        Response::builder().status(status).body(Body::from(review.to_string())).unwrap()
    }

    async fn answer(self, request: Request<Body>) -> Response<Body> {
        let line = format!("{} {}", request.method(), request.uri());
        self.0.lock().impersonated = request.headers().contains_key("impersonate-user");
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let reply = {
            let mut state = self.0.lock();
            state.requests.push((line, serde_json::from_slice(&body).unwrap_or(Value::Null)));
            state.replies.pop_front().or_else(|| state.always.clone())
        };
        match reply {
            Some(Reply::Fail(reason, message)) => return ServiceError::new(reason, message).into_response(),
            Some(Reply::After(time)) => sleep(time).await,
            Some(Reply::Never) => pending().await,
            Some(Reply::Cut) => {
                let frames = [Ok(Frame::data(Bytes::from_static(b"{"))), Err(io::Error::other("lost"))];
                return Response::new(Body::new(StreamBody::new(stream::iter(frames))));
            }
            Some(Reply::Garbage) => return Response::new(Body::from("[]")),
            None => {}
        }
        let mut objects = vec![json!({"kind": "Namespace", "name": "live-30-7", "change": "created"})];
        if let Some(change) = self.0.lock().binding {
            objects.push(json!({
                "group": "rbac.authorization.k8s.io", "kind": "RoleBinding", "namespace": "live-30-7", "name": "deployers",
                "change": change,
            }));
        }
        Response::new(Body::from(json!({"template": "default.yaml", "objects": objects}).to_string()))
    }

    pub(super) fn next(&self, replies: impl IntoIterator<Item = Reply>) {
        self.0.lock().replies.extend(replies);
    }

    pub(super) fn always(&self, reply: Option<Reply>) {
        self.0.lock().always = reply;
    }

    /// Returns and forgets the requests.
    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().requests).into_iter().map(|(line, _)| line).collect()
    }
}
