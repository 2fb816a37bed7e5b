//! A real cluster, through the client of kube-rs over connections of agentk.

mod known_kinds;
mod page;
#[cfg(test)]
mod tests;

use std::{
    borrow::Cow,
    collections::BTreeSet,
    fmt,
    sync::{Arc, LazyLock},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER, USER_AGENT},
};
use http_body_util::{BodyExt as _, Limited};
use kube::{
    Client,
    api::{
        DeleteParams, DynamicObject, GetParams, ListParams, Patch, PatchParams, PostParams, Preconditions,
    },
    client::Body,
    core::{ApiResource, GroupVersionKind},
};
use parking_lot::Mutex;
use proto::{
    IdentityValue,
    agent_configuration::gitops::PropagationPolicy,
    gitops::{ClusterVersions, ObjectId},
    impersonation, percent,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use self::{
    known_kinds::{KnownKinds, discover},
    page::{MetadataItem, Page},
};
use crate::{
    ApiError, Applied, ApplyOptions, Cluster, FIELD_MANAGER, GroupKind, Kind, KindLookup, MetadataPage,
    cluster::Cause,
};

/// The objects of one page of a list.
const PAGE: u32 = 500;
/// The same for metadata, which is about a kilobyte for each object.
const METADATA_PAGE: u32 = 2000;
/// The same for metadata that others have made: annotations have up to 256 KiB for each object.
const FOREIGN_PAGE: u32 = 100;
/// The largest response with such a page, in bytes.
const MAX_FOREIGN_PAGE: usize = 32 << 20;
/// The largest response, in bytes. A page of large objects has tens of megabytes.
const MAX_RESPONSE: usize = 256 << 20;
/// The shortest time between two looks for a group that does not respond.
const UNAVAILABLE_PERIOD: Duration = Duration::from_secs(10);
/// The age of a discovery with which charts are still rendered.
const VERSIONS_AGE: Duration = Duration::from_secs(30);
/// The header with the user that a request acts as.
const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");

/// A real cluster. Clones share the kinds that they know.
#[derive(Clone)]
pub struct KubeCluster {
    client: Arc<LazyClient>,
    /// The headers with the identity, if it is not that of agentk, and with the name of the program.
    identity: Arc<HeaderMap>,
    kinds: Arc<Mutex<Option<Arc<KnownKinds>>>>,
}

type BuildClient = Box<dyn FnOnce() -> Client + Send>;
type LazyClient = LazyLock<Client, BuildClient>;

/// The part of a `Status` that people need.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    reason: String,
    message: String,
    details: Details,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Details {
    causes: Vec<Cause>,
    retry_after_seconds: u64,
}

impl KubeCluster {
    /// Returns a cluster behind a client, with the identity of the client. It is built at its first use, because kube-rs starts a task
    /// for it.
    pub fn new(client: impl FnOnce() -> Client + Send + 'static) -> Self {
        let client: BuildClient = Box::new(client);
        Self { client: Arc::new(LazyLock::new(client)), identity: Arc::default(), kinds: Arc::default() }
    }

    /// Acts as a service account, which the API server authorizes.
    #[must_use]
    pub fn acting_as(&self, namespace: &str, service_account: &str) -> Self {
        let user = format!("system:serviceaccount:{namespace}:{service_account}");
        // A name that is no header must not become the identity of agentk, nor that of another account.
        let user = IdentityValue::new(&user);
        let user = user.map_or(HeaderValue::from_static("system:anonymous"), HeaderValue::from);
        Self { identity: Arc::new(HeaderMap::from_iter([(IMPERSONATE_USER, user)])), ..self.clone() }
    }

    /// Names the program in the audit log of the cluster.
    #[must_use]
    pub fn with_user_agent(&self, text: &str) -> Self {
        let mut identity = HeaderMap::clone(&self.identity);
        identity.extend(HeaderValue::from_str(text).ok().map(|value| (USER_AGENT, value)));
        Self { identity: Arc::new(identity), ..self.clone() }
    }

    /// Acts as the caller of a request, if kas has given the caller an identity in the cluster.
    #[must_use]
    pub fn acting_for(&self, request: &HeaderMap) -> Option<Self> {
        let named = request.iter().filter(|(name, _)| name.as_str().starts_with(impersonation::PREFIX));
        let identity: HeaderMap = named.map(|(name, value)| (name.clone(), value.clone())).collect();
        (!identity.is_empty()).then(|| Self { identity: Arc::new(identity), ..self.clone() })
    }

    /// Returns whether this identity may do something with the objects of a resource, such as `deployments`. `namespace` is empty for
    /// all namespaces.
    ///
    /// # Errors
    ///
    /// The API server does not say.
    pub async fn may(
        &self,
        verb: &str,
        group: &str,
        resource: &str,
        namespace: &str,
    ) -> Result<bool, ApiError> {
        let attributes = json!({"verb": verb, "group": group, "resource": resource, "namespace": namespace});
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        });
        let request = Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
            .header(CONTENT_TYPE, "application/json")
            .body(review.to_string().into_bytes());
        let (_, review) = self.json(request).await?;
        Ok(review["status"]["allowed"] == true)
    }

    /// Creates an object.
    ///
    /// # Errors
    ///
    /// There is one of the same name, the API server refuses it, or it does not respond.
    pub async fn create(
        &self,
        kind: &Kind,
        id: &ObjectId,
        object: &Value,
        manager: &str,
    ) -> Result<(), ApiError> {
        let params = PostParams { dry_run: false, field_manager: Some(manager.to_owned()) };
        let request = path(kind, &id.namespace).create(&params, object.to_string().into_bytes());
        self.send(request).await.map(drop)
    }

    /// Applies the status of an object.
    ///
    /// # Errors
    ///
    /// The API server refuses it, or does not respond.
    pub async fn apply_status(
        &self,
        kind: &Kind,
        id: &ObjectId,
        object: &Value,
        manager: &str,
    ) -> Result<(), ApiError> {
        let params = PatchParams::apply(manager).force();
        let request = path(kind, &id.namespace).patch_subresource(
            "status",
            &segment(id),
            &params,
            &Patch::Apply(object),
        );
        self.send(request).await.map(drop)
    }

    /// Returns a Lease (`coordination.k8s.io/v1`), if it exists.
    pub(crate) async fn lease(&self, namespace: &str, name: &str) -> Result<Option<Value>, ApiError> {
        match self.json(leases(namespace).get(name, &GetParams::default())).await {
            Ok((_, lease)) => Ok(Some(lease)),
            Err(error) if error.status == 404 => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates a Lease, or replaces the version that it names.
    pub(crate) async fn write_lease(
        &self,
        namespace: &str,
        lease: &Value,
        create: bool,
    ) -> Result<Value, ApiError> {
        let (path, body) = (leases(namespace), lease.to_string().into_bytes());
        let name = lease["metadata"]["name"].as_str().unwrap_or_default();
        let request = if create {
            path.create(&PostParams::default(), body)
        } else {
            path.replace(name, &PostParams::default(), body)
        };
        self.json(request).await.map(|(_, lease)| lease)
    }

    async fn send(
        &self,
        request: Result<Request<Vec<u8>>, impl fmt::Display>,
    ) -> Result<(StatusCode, Bytes), ApiError> {
        self.send_with_limit(request, MAX_RESPONSE).await
    }

    /// Sends a request whose response has at most so many bytes.
    async fn send_with_limit(
        &self,
        request: Result<Request<Vec<u8>>, impl fmt::Display>,
        limit: usize,
    ) -> Result<(StatusCode, Bytes), ApiError> {
        let request = request.map_err(|error| lost(format!("the request cannot be built: {error}")))?;
        let (mut parts, body) = request.into_parts();
        for (name, value) in &*self.identity {
            parts.headers.append(name.clone(), value.clone());
        }
        let response = self.client.send(Request::from_parts(parts, Body::from(body))).await;
        let response = response.map_err(|error| lost(error.to_string()))?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, limit).collect().await;
        let body = body
            .map_err(|error| lost(format!("the response of the API server was cut: {error}")))?
            .to_bytes();
        if parts.status.is_success() {
            return Ok((parts.status, body));
        }
        let seconds = parts.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        Err(api_error(parts.status, &body, seconds))
    }

    /// Returns the version and the API of the cluster.
    ///
    /// # Errors
    ///
    /// The kinds cannot be discovered.
    pub async fn versions(&self) -> Result<ClusterVersions, ApiError> {
        if self.kinds.lock().as_ref().is_some_and(|known| known.since.elapsed() >= VERSIONS_AGE) {
            self.forget_kinds();
        }
        let known = self.kinds().await?;
        let mut api = BTreeSet::new();
        for Kind { kind: GroupKind { group, kind }, version, .. } in
            known.kinds.iter().map(|known| &known.kind)
        {
            let version = if group.is_empty() { version.clone() } else { format!("{group}/{version}") };
            api.insert(format!("{version}/{kind}"));
            api.insert(version);
        }
        // A policy may refuse it. kas knows the version from the tunnel, too.
        let version = self.json(Request::get("/version").body(Vec::new())).await;
        let kubernetes =
            version.ok().and_then(|(_, version)| Some(version["gitVersion"].as_str()?.to_owned()));
        let kubernetes = kubernetes.unwrap_or_default();
        let unavailable = known.unavailable.iter().cloned().collect();
        Ok(ClusterVersions { kubernetes, api: api.into_iter().collect(), unavailable, hooks: true })
    }

    /// Returns the client. Requests through it do not act as a service account.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) async fn json(
        &self,
        request: Result<Request<Vec<u8>>, impl fmt::Display>,
    ) -> Result<(StatusCode, Value), ApiError> {
        let (status, body) = self.send(request).await?;
        Ok((status, from_json(&body)?))
    }

    async fn kinds(&self) -> Result<Arc<KnownKinds>, ApiError> {
        let known = self.kinds.lock().clone();
        if let Some(known) = known {
            return Ok(known);
        }
        let kinds = Arc::new(discover(&self.client).await?);
        *self.kinds.lock() = Some(Arc::clone(&kinds));
        Ok(kinds)
    }
}

impl Cluster for KubeCluster {
    async fn resolve(&self, kind: &GroupKind, version: Option<&str>) -> Result<KindLookup, ApiError> {
        let known = self.kinds().await?;
        let found = known.lookup(kind, version);
        if found != KindLookup::Unavailable || known.since.elapsed() < UNAVAILABLE_PERIOD {
            return Ok(found);
        }
        self.forget_kinds();
        Ok(self.kinds().await?.lookup(kind, version))
    }

    async fn listable_kinds(&self) -> Result<(Vec<Kind>, Vec<String>), ApiError> {
        let known = self.kinds().await?;
        let listed = known.kinds.iter().filter(|known| known.preferred && known.listable);
        Ok((listed.map(|known| known.kind.clone()).collect(), known.unavailable.iter().cloned().collect()))
    }

    fn forget_kinds(&self) {
        *self.kinds.lock() = None;
    }

    async fn get(&self, kind: &Kind, id: &ObjectId) -> Result<Option<Value>, ApiError> {
        match self.json(path(kind, &id.namespace).get(&segment(id), &GetParams::default())).await {
            Ok((_, object)) => Ok(Some(object)),
            Err(error) if error.status == 404 => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn list(
        &self,
        kind: &Kind,
        namespace: &str,
        selector: &str,
        only_metadata: bool,
    ) -> Result<Vec<Value>, ApiError> {
        let path = path(kind, namespace);
        let api_version = match &*kind.kind.group {
            "" => kind.version.clone(),
            group => format!("{group}/{}", kind.version),
        };
        let limit = if only_metadata { METADATA_PAGE } else { PAGE };
        let (mut all, mut params) = (Vec::new(), ListParams::default().labels(selector).limit(limit));
        loop {
            let request = if only_metadata { path.list_metadata(&params) } else { path.list(&params) };
            let (_, body) = self.send(request).await?;
            let page: Page<'_> = from_json(&body)?;
            for item in page.items.into_iter().flatten() {
                let mut item: Map<String, Value> = from_json(item.get().as_bytes())?;
                // Items of lists have neither.
                item.insert("apiVersion".to_owned(), api_version.clone().into());
                item.insert("kind".to_owned(), kind.kind.kind.clone().into());
                let mut item = Value::Object(item);
                // Callers read the managers, and not their fields, which are the most of the metadata.
                let managers = item.pointer_mut("/metadata/managedFields").and_then(Value::as_array_mut);
                for manager in managers.into_iter().flatten().filter_map(Value::as_object_mut) {
                    manager.remove("fieldsV1");
                }
                all.push(item);
            }
            match page.metadata.continue_token {
                Some(token) if !token.is_empty() => {
                    params = ListParams::default().labels(selector).limit(limit).continue_token(&token);
                }
                _ => return Ok(all),
            }
        }
    }

    async fn metadata_page(
        &self,
        kind: &Kind,
        namespace: &str,
        selector: &str,
        is_read: fn(&str) -> bool,
        token: Option<&str>,
    ) -> Result<MetadataPage, ApiError> {
        let mut params = ListParams::default().labels(selector).limit(FOREIGN_PAGE);
        if let Some(token) = token {
            params = params.continue_token(token);
        }
        let request = path(kind, namespace).list_metadata(&params);
        let (_, body) = self.send_with_limit(request, MAX_FOREIGN_PAGE).await?;
        let page: Page<'_> = from_json(&body)?;
        let items = page.items.into_iter().flatten();
        let objects = items.map(|item| {
            let item: MetadataItem = from_json(item.get().as_bytes())?;
            Ok(item.metadata.into_object(is_read))
        });
        let next = page.metadata.continue_token.filter(|token| !token.is_empty());
        Ok(MetadataPage { objects: objects.collect::<Result<_, ApiError>>()?, next })
    }

    async fn apply(
        &self,
        kind: &Kind,
        id: &ObjectId,
        object: &Value,
        options: ApplyOptions<'_>,
    ) -> Result<Applied, ApiError> {
        let params = PatchParams {
            dry_run: options.dry_run,
            force: options.force,
            field_manager: Some(options.manager.to_owned()),
            ..PatchParams::default()
        };
        let request = path(kind, &id.namespace).patch(&segment(id), &params, &Patch::Apply(object));
        let (status, object) = self.json(request).await?;
        Ok(Applied { created: status == StatusCode::CREATED, object })
    }

    async fn try_create(&self, kind: &Kind, id: &ObjectId, object: &Value) -> Result<(), ApiError> {
        let params = PostParams { dry_run: true, field_manager: Some(FIELD_MANAGER.to_owned()) };
        let request = path(kind, &id.namespace).create(&params, object.to_string().into_bytes());
        match self.json(request).await {
            // The API server validates an object before it looks for one of the same name.
            Err(error) if error.status == 409 && error.reason == "AlreadyExists" => Ok(()),
            result => result.map(drop),
        }
    }

    async fn patch(&self, kind: &Kind, id: &ObjectId, patch: &Value) -> Result<Value, ApiError> {
        let url = path(kind, &id.namespace).url_path;
        let request = Request::patch(format!("{url}/{}?fieldManager={FIELD_MANAGER}", segment(id)))
            .header(CONTENT_TYPE, "application/json-patch+json")
            .header(ACCEPT, "application/json")
            .body(patch.to_string().into_bytes());
        self.json(request).await.map(|(_, object)| object)
    }

    async fn delete(
        &self,
        kind: &Kind,
        id: &ObjectId,
        uid: &str,
        resource_version: Option<&str>,
        propagation: PropagationPolicy,
    ) -> Result<bool, ApiError> {
        let params = match propagation {
            PropagationPolicy::Orphan => DeleteParams::orphan(),
            PropagationPolicy::Background => DeleteParams::background(),
            PropagationPolicy::Foreground => DeleteParams::foreground(),
        };
        let preconditions = Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: resource_version.map(str::to_owned),
        };
        let request = path(kind, &id.namespace).delete(&segment(id), &params.preconditions(preconditions));
        let (_, response) = self.json(request).await?;
        // Otherwise it is the object, which may have finalizers.
        Ok(response["kind"] == "Status")
    }
}

impl fmt::Debug for KubeCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubeCluster")
            .field("user", &self.identity.get(IMPERSONATE_USER))
            .finish_non_exhaustive()
    }
}

fn leases(namespace: &str) -> kube::core::Request {
    kube::core::Request::new(format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"))
}

/// Returns the name of an object as a part of a path. Names of RBAC may have a space, `|` or `#`.
fn segment(id: &ObjectId) -> Cow<'_, str> {
    percent::encode_segment(&id.name)
}

/// Returns the builder of requests for a kind in a namespace, or in all of them.
pub(crate) fn path(kind: &Kind, namespace: &str) -> kube::core::Request {
    let Kind { kind: GroupKind { group, kind }, version, plural, namespaced, .. } = kind;
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
    let namespace = (*namespaced && !namespace.is_empty()).then_some(namespace);
    kube::core::Request::new(<DynamicObject as kube::Resource>::url_path(&resource, namespace))
}

fn api_error(status: StatusCode, body: &[u8], retry_after: Option<u64>) -> ApiError {
    let Status { reason, message, details } = serde_json::from_slice(body).unwrap_or_default();
    let seconds = retry_after.or_else(|| Some(details.retry_after_seconds).filter(|seconds| *seconds > 0));
    ApiError {
        status: status.as_u16(),
        reason,
        message,
        causes: details.causes,
        retry_after: seconds.map(Duration::from_secs),
    }
}

fn from_json<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body)
        .map_err(|error| lost(format!("the response of the API server is not JSON: {error}")))
}

/// Returns the error of a request without a response.
pub(crate) fn lost(message: String) -> ApiError {
    ApiError { message, ..ApiError::default() }
}
