//! A real cluster, through the client of kube-rs over connections of agentk.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashSet},
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
    core::{
        ApiResource, GroupVersionKind,
        discovery::{Scope, v2::APIGroupDiscovery},
    },
    discovery::{self, Discovery},
};
use parking_lot::Mutex;
use proto::{
    IdentityValue,
    agent_configuration::gitops::PropagationPolicy,
    gitops::{ClusterVersions, ObjectId},
    impersonation, percent,
};
use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};
use tokio::time::Instant;

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
/// The most labels and the most annotations of an object that are kept from such a page. Each environment of an object has one.
const MAX_KEPT: usize = 256;
/// The most owners of an object that are kept from it.
const MAX_OWNERS: usize = 16;
/// The longest value of an annotation that is kept from it, in bytes.
const MAX_KEPT_VALUE: usize = 4096;
/// The longest UID of an owner that is kept from it. The API server makes UIDs of 36 bytes, and does not check those of owners.
const MAX_UID: usize = 64;
/// The largest response, in bytes. A page of large objects has tens of megabytes.
const MAX_RESPONSE: usize = 256 << 20;
/// The freshness of a version of an API group whose server does not respond (`apidiscovery.k8s.io/v2`).
const STALE: &str = "Stale";
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

/// The kinds of a cluster at a time.
#[derive(Debug)]
struct KnownKinds {
    kinds: Vec<KnownKind>,
    /// The API groups whose servers did not respond. Some of their kinds may be known.
    unavailable: BTreeSet<String>,
    since: Instant,
}

#[derive(Debug)]
struct KnownKind {
    kind: Kind,
    /// It is the version that the group prefers.
    preferred: bool,
    listable: bool,
}

/// A page of a list. Its items are parsed one by one: as values, a whole page needs many times its bytes.
#[derive(Deserialize)]
struct Page<'a> {
    /// An empty list may have `null`.
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
    #[serde(default)]
    metadata: PageMetadata,
}

#[derive(Default, Deserialize)]
struct PageMetadata {
    #[serde(rename = "continue")]
    continue_token: Option<String>,
}

/// An item of a page of metadata.
#[derive(Deserialize)]
struct MetadataItem {
    metadata: ItemMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ItemMetadata {
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    resource_version: String,
    deletion_timestamp: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<ItemOwner>>,
}

#[derive(Deserialize)]
struct ItemOwner {
    #[serde(default)]
    uid: String,
}

impl ItemMetadata {
    /// Returns an object with this metadata and the selected labels and annotations.
    fn into_object(self, is_read: fn(&str) -> bool) -> Value {
        let select = |map: BTreeMap<String, String>| {
            let read = map.into_iter().filter(|(key, _)| is_read(key)).take(MAX_KEPT);
            let short = |value: String| if value.len() > MAX_KEPT_VALUE { String::new() } else { value };
            read.map(|(key, value)| (key, Value::from(short(value)))).collect::<Map<_, _>>()
        };
        let texts = [
            ("name", Some(self.name)),
            ("namespace", Some(self.namespace).filter(|text| !text.is_empty())),
            ("uid", Some(self.uid)),
            ("resourceVersion", Some(self.resource_version)),
            ("deletionTimestamp", self.deletion_timestamp),
        ];
        let texts = texts.into_iter().filter_map(|(key, text)| Some((key.to_owned(), text?.into())));
        let mut metadata: Map<String, Value> = texts.collect();
        for (key, map) in [("labels", self.labels), ("annotations", self.annotations)] {
            metadata.extend(map.map(|map| (key.to_owned(), select(map).into())));
        }
        let owners = self.owner_references.unwrap_or_default();
        if !owners.is_empty() {
            // An owner without a UID is in no namespace.
            let unknown = (owners.len() > MAX_OWNERS).then(|| json!({}));
            let owners = owners.into_iter().take(MAX_OWNERS).map(|owner| match owner.uid.len() > MAX_UID {
                true => json!({}),
                false => json!({"uid": owner.uid}),
            });
            metadata.insert("ownerReferences".to_owned(), owners.chain(unknown).collect());
        }
        json!({"metadata": metadata})
    }
}

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
        let request = match create {
            true => path.create(&PostParams::default(), body),
            false => path.replace(name, &PostParams::default(), body),
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

/// Asks for all kinds: in two requests where the API server can do that (Kubernetes 1.26), and otherwise in one for each group. A
/// group whose server is down does not hinder the others.
async fn discover(client: &Client) -> Result<KnownKinds, ApiError> {
    let error = |error: kube::Error| lost(format!("the discovery of the API server failed: {error}"));
    let mut known = KnownKinds { kinds: Vec::new(), unavailable: BTreeSet::new(), since: Instant::now() };
    if let Ok(core) = client.list_core_api_versions_aggregated().await {
        core.items.into_iter().for_each(|group| known.add_discovery(group));
        // An older API server answers with another list, in which nothing is found.
        if !known.kinds.is_empty() {
            let groups = client.list_api_groups_aggregated().await.map_err(error)?;
            groups.items.into_iter().for_each(|group| known.add_discovery(group));
            return Ok(known);
        }
    }
    let core = Discovery::new(client.clone())
        .filter(&[discovery::ApiGroup::CORE_GROUP])
        .run()
        .await
        .map_err(error)?;
    core.groups().for_each(|group| known.add_group(group));
    for group in client.list_api_groups().await.map_err(error)?.groups {
        match discovery::group(client, &group.name).await {
            Ok(group) => known.add_group(&group),
            Err(error) => {
                tracing::debug!(group = group.name, %error, "the kinds of an API group are not known");
                known.unavailable.insert(group.name);
            }
        }
    }
    Ok(known)
}

impl KnownKinds {
    fn lookup(&self, kind: &GroupKind, version: Option<&str>) -> KindLookup {
        let mut found = self.kinds.iter().filter(|known| known.kind.kind == *kind);
        let found = match version {
            Some(version) => found.find(|known| known.kind.version == version),
            None => found.find(|known| known.preferred),
        };
        match found {
            Some(known) => KindLookup::Found(known.kind.clone()),
            None if self.unavailable.contains(&kind.group) => KindLookup::Unavailable,
            None => KindLookup::Missing,
        }
    }

    /// Adds a group of an aggregated discovery, whose first version is the preferred one.
    fn add_discovery(&mut self, group: APIGroupDiscovery) {
        let name = group.metadata.and_then(|metadata| metadata.name).unwrap_or_default();
        let mut seen = HashSet::new();
        for version in group.versions {
            if version.freshness.as_deref() == Some(STALE) {
                self.unavailable.insert(name.clone());
            }
            for resource in version.resources {
                let kind = resource.response_kind.and_then(|kind| kind.kind).unwrap_or_default();
                let kind = GroupKind { group: name.clone(), kind };
                self.kinds.push(KnownKind {
                    preferred: seen.insert(kind.clone()),
                    listable: resource.verbs.iter().any(|verb| verb == "list"),
                    kind: Kind {
                        kind,
                        version: version.version.clone().unwrap_or_default(),
                        plural: resource.resource.unwrap_or_default(),
                        namespaced: resource.scope.as_deref() == Some("Namespaced"),
                        has_status: resource
                            .subresources
                            .iter()
                            .any(|it| it.subresource.as_deref() == Some("status")),
                    },
                });
            }
        }
    }

    fn add_group(&mut self, group: &discovery::ApiGroup) {
        let preferred = group.preferred_version_or_latest();
        let mut versions: Vec<&str> = group.versions().collect();
        // The kinds of the preferred version come first, so that a kind that only an older version has is found, too.
        versions.sort_by_key(|version| *version != preferred);
        let mut seen = HashSet::new();
        for version in versions {
            for (resource, capabilities) in group.versioned_resources(version) {
                let group_kind = GroupKind { group: resource.group, kind: resource.kind };
                self.kinds.push(KnownKind {
                    preferred: seen.insert(group_kind.clone()),
                    listable: capabilities.supports_operation("list"),
                    kind: Kind {
                        kind: group_kind,
                        version: resource.version,
                        plural: resource.plural,
                        namespaced: capabilities.scope == Scope::Namespaced,
                        has_status: capabilities.subresources.iter().any(|(it, _)| it.plural == "status"),
                    },
                });
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::Response;
    use http_body_util::Full;
    use tower::service_fn;

    use super::*;

    /// Returns a cluster whose API server has these answers. All other paths are those of a server that is down.
    fn cluster(answer: fn(&str) -> Value) -> KubeCluster {
        let service = service_fn(move |request: Request<Body>| async move {
            let answer = answer(request.uri().path());
            let status = if answer.is_null() { 503 } else { 200 };
            let body = Full::new(Bytes::from(answer.to_string()));
            Ok::<_, Infallible>(Response::builder().status(status).body(body).expect("a valid response"))
        });
        KubeCluster::new(move || Client::new(service, "default"))
    }

    #[tokio::test]
    async fn items_of_a_list_keep_their_managers_and_not_the_fields() {
        let cluster = cluster(|_| {
            let manager = json!({"manager": "agentk", "operation": "Apply", "fieldsV1": {"f:data": {}}});
            json!({"items": [{"metadata": {"name": "a", "managedFields": [manager]}}]})
        });
        let kind = GroupKind { group: "apps".to_owned(), kind: "Deployment".to_owned() };
        let kind = Kind {
            kind,
            version: "v1".to_owned(),
            plural: "deployments".to_owned(),
            namespaced: true,
            has_status: true,
        };
        let listed = cluster.list(&kind, "default", "", true).await.unwrap();
        let managers = json!([{"manager": "agentk", "operation": "Apply"}]);
        let whole = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a", "managedFields": managers}});
        assert_eq!(listed, [whole]);
    }

    /// A user who may create objects in a namespace decides about their metadata.
    #[tokio::test]
    async fn page_of_metadata_keeps_little_of_an_object() {
        let cluster = cluster(|_| {
            let owners: Vec<Value> = (0..20).map(|number| json!({"uid": number.to_string()})).collect();
            let large = json!({
                "name": "a", "namespace": "shop", "uid": "u", "resourceVersion": "7",
                "labels": {"kept/a": "", "other": "x"},
                "annotations": {"kept/a": "x".repeat(5000), "kept/b": "y", "other": "z".repeat(1 << 18)},
                "ownerReferences": owners, "managedFields": [{"manager": "m"}],
            });
            let strange = json!({"name": "b", "ownerReferences": [{"uid": "x".repeat(1 << 16)}]});
            json!({"items": [{"metadata": large}, {"metadata": strange}], "metadata": {"continue": "next"}})
        });
        let kind = GroupKind { group: String::new(), kind: "ConfigMap".to_owned() };
        let kind = Kind {
            kind,
            version: "v1".to_owned(),
            plural: "configmaps".to_owned(),
            namespaced: true,
            has_status: false,
        };
        let page = cluster.metadata_page(&kind, "shop", "", |key| key.starts_with("kept/"), None);
        let MetadataPage { objects, next } = page.await.unwrap();
        assert_eq!(next.as_deref(), Some("next"));
        let metadata = &objects[0]["metadata"];
        assert_eq!(metadata["labels"], json!({"kept/a": ""}));
        assert_eq!(metadata["annotations"], json!({"kept/a": "", "kept/b": "y"}));
        assert_eq!((&metadata["uid"], &metadata["resourceVersion"]), (&json!("u"), &json!("7")));
        let owners = metadata["ownerReferences"].as_array().unwrap();
        assert_eq!((owners.len(), &owners[16]), (17, &json!({})), "there are further owners");
        assert_eq!(objects[1]["metadata"]["ownerReferences"], json!([{}]));
        assert!(objects[0].to_string().len() < 1000 && metadata.get("managedFields").is_none());
    }

    #[tokio::test]
    async fn requests_have_the_identity_and_the_name_of_the_program() {
        let service = service_fn(async |request: Request<Body>| {
            let value = |name: HeaderName| {
                request
                    .headers()
                    .get_all(name)
                    .iter()
                    .map(|value| value.to_str().unwrap())
                    .collect::<Vec<_>>()
                    .join(",")
            };
            let name = format!("{} {}", value(IMPERSONATE_USER), value(USER_AGENT));
            let list = json!({"items": [{"metadata": {"name": name}}]});
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(list.to_string()))))
        });
        let cluster = KubeCluster::new(move || Client::new(service, "default"));
        let kind = GroupKind { group: String::new(), kind: "ConfigMap".to_owned() };
        let kind = Kind {
            kind,
            version: "v1".to_owned(),
            plural: "configmaps".to_owned(),
            namespaced: true,
            has_status: false,
        };
        let named = cluster.acting_as("shop", "deployer").with_user_agent("agentk/1 gitops/2 (a)");
        let listed = named.with_user_agent("no\nheader").list(&kind, "default", "", true).await.unwrap();
        assert_eq!(
            listed[0]["metadata"]["name"],
            "system:serviceaccount:shop:deployer agentk/1 gitops/2 (a)"
        );
    }

    /// The names of RBAC are parts of paths, and have no other limit.
    #[tokio::test]
    async fn name_is_a_part_of_the_path() {
        let cluster = cluster(|path| json!({"kind": "Status", "metadata": {"name": path}}));
        let kind = GroupKind { group: "rbac.authorization.k8s.io".to_owned(), kind: "Role".to_owned() };
        let kind = Kind {
            kind,
            version: "v1".to_owned(),
            plural: "roles".to_owned(),
            namespaced: true,
            has_status: false,
        };
        for (name, expected) in [("system:a", "system:a"), ("a|b #c", "a%7Cb%20%23c"), ("ü?", "%C3%BC%3F")] {
            let (text, group) = (str::to_owned, kind.kind.group.clone());
            let id = ObjectId { group, kind: text("Role"), namespace: text("shop"), name: text(name) };
            let got = cluster.get(&kind, &id).await.unwrap().unwrap();
            let options = ApplyOptions { manager: FIELD_MANAGER, dry_run: false, force: false };
            let applied = cluster.apply(&kind, &id, &json!({}), options).await.unwrap().object;
            let patched = cluster.patch(&kind, &id, &json!([])).await.unwrap();
            let path = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/shop/roles/{expected}");
            assert_eq!(
                [got, applied, patched].map(|object| object["metadata"]["name"].clone()),
                [(); 3].map(|()| json!(path))
            );
            assert!(cluster.delete(&kind, &id, "u", None, PropagationPolicy::Background).await.unwrap());
        }
    }

    #[tokio::test]
    async fn items_that_are_no_objects_are_an_error() {
        let kind = GroupKind { group: String::new(), kind: "ConfigMap".to_owned() };
        let kind = Kind {
            kind,
            version: "v1".to_owned(),
            plural: "configmaps".to_owned(),
            namespaced: true,
            has_status: false,
        };
        let error = cluster(|_| json!({"items": ["a"]})).list(&kind, "default", "", true).await.unwrap_err();
        assert!(error.message.contains("is not JSON"), "{error:?}");
    }

    async fn check_groups(cluster: KubeCluster) {
        let lookup = async |group: &str, kind: &str| {
            let kind = GroupKind { group: group.to_owned(), kind: kind.to_owned() };
            cluster.resolve(&kind, None).await.unwrap()
        };
        assert_eq!(lookup("", "ConfigMap").await.found().unwrap().plural, "configmaps");
        assert_eq!(lookup("apps", "Deployment").await.found().unwrap().version, "v1");
        assert_eq!(lookup("apps", "Toy").await, KindLookup::Missing);
        assert_eq!(lookup("metrics.example.com", "Toy").await, KindLookup::Unavailable);
        let (kinds, unavailable) = cluster.listable_kinds().await.unwrap();
        assert_eq!((kinds.len(), unavailable), (2, vec!["metrics.example.com".to_owned()]));
        let versions = cluster.versions().await.unwrap();
        assert_eq!(versions.api, ["apps/v1", "apps/v1/Deployment", "v1", "v1/ConfigMap"]);
        assert_eq!((&*versions.kubernetes, &*versions.unavailable[0]), ("v1.37.0", "metrics.example.com"));
    }

    #[tokio::test]
    async fn kinds_of_a_group_that_is_down_are_not_missing() {
        let answer = |path: &str| {
            let group = |name: &str, freshness: &str, resources: Value| {
                let version = json!({"version": "v1", "freshness": freshness, "resources": resources});
                json!({"metadata": {"name": name}, "versions": [version]})
            };
            let resource = |name: &str, kind: &str| json!([{"resource": name, "responseKind": {"kind": kind}, "scope": "Namespaced", "verbs": ["list"]}]);
            match path {
                "/api" => json!({"items": [group("", "Current", resource("configmaps", "ConfigMap"))]}),
                "/apis" => json!({"items": [
                    group("apps", "Current", resource("deployments", "Deployment")),
                    group("metrics.example.com", "Stale", json!([])),
                ]}),
                "/version" => json!({"major": "1", "gitVersion": "v1.37.0"}),
                _ => Value::Null,
            }
        };
        check_groups(cluster(answer)).await;
    }

    /// Kubernetes before 1.26 has one list for each group.
    #[tokio::test]
    async fn kinds_of_a_group_that_is_down_are_not_missing_in_an_old_cluster() {
        let answer = |path: &str| {
            let list = |version: &str, name: &str, kind: &str| {
                let resource = json!({"name": name, "singularName": "", "kind": kind, "namespaced": true, "verbs": ["list"]});
                json!({"kind": "APIResourceList", "groupVersion": version, "resources": [resource]})
            };
            let group = |name: &str| {
                let version = json!({"groupVersion": format!("{name}/v1"), "version": "v1"});
                json!({"name": name, "versions": [version], "preferredVersion": version})
            };
            match path {
                "/api" => {
                    json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
                }
                "/api/v1" => list("v1", "configmaps", "ConfigMap"),
                "/apis" => {
                    json!({"kind": "APIGroupList", "groups": [group("apps"), group("metrics.example.com")]})
                }
                "/apis/apps/v1" => list("apps/v1", "deployments", "Deployment"),
                "/version" => json!({"major": "1", "gitVersion": "v1.37.0"}),
                _ => Value::Null,
            }
        };
        check_groups(cluster(answer)).await;
    }
}
