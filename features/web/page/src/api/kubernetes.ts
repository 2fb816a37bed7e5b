/** The Kubernetes API of a cluster, as the caller would use it with kubectl. */

import { getJson, readJson, request } from "./client";
import type { Node } from "./graph";
import { agentPath } from "./paths";

/** The identity of an object. */
export interface ObjectKey {
  group: string;
  version: string;
  kind: string;
  namespace: string;
  name: string;
}

export function keyOf({ group = "", version, kind, namespace = "", name }: Node): ObjectKey {
  return { group, version, kind, namespace, name };
}

/** An object as the API server has it. */
export interface KubernetesObject {
  kind?: string;
  metadata?: { uid?: string; managedFields?: unknown; annotations?: Record<string, string> };
  data?: Record<string, string>;
  stringData?: Record<string, string>;
  status?: { conditions?: unknown };
  spec?: unknown;
  [key: string]: unknown;
}

/** The most events that are read. */
const MAX_EVENTS = 5000;

export interface KubernetesEvent {
  metadata: { uid: string };
  involvedObject?: { uid?: string; kind?: string; namespace?: string; name?: string };
  type?: string;
  reason?: string;
  message?: string;
  count?: number;
  lastTimestamp?: string | null;
  eventTime?: string | null;
}

/** A request that changes an object. */
export interface Change {
  method: "PATCH" | "DELETE";
  /** The subresource, such as `scale`, or nothing. */
  subresource: string;
  contentType: string;
  body: unknown;
}

interface ApiResource {
  name: string;
  kind: string;
  namespaced: boolean;
}

const resources = new Map<string, Promise<ApiResource[]>>();

function kubernetesPath(agent: string, path: string): string {
  return agentPath(agent, `/kubernetes${path}`);
}

function groupPath(key: ObjectKey): string {
  const part = encodeURIComponent;
  return key.group === "" ? `/api/${part(key.version)}` : `/apis/${part(key.group)}/${part(key.version)}`;
}

/** Returns the resources of an API group. They are kept while the page is open. */
function resourcesOf(agent: string, key: ObjectKey): Promise<ApiResource[]> {
  const path = kubernetesPath(agent, groupPath(key));
  let known = resources.get(path);
  if (!known) {
    known = getJson<{ resources: ApiResource[] }>(path).then((list) => list.resources);
    known.catch(() => resources.delete(path));
    resources.set(path, known);
  }
  return known;
}

async function resourceOf(agent: string, key: ObjectKey): Promise<ApiResource> {
  const all = await resourcesOf(agent, key);
  const resource = all.find(({ kind, name }) => kind === key.kind && !name.includes("/"));
  if (!resource) throw new Error(`the API server does not serve the kind ${key.kind} any more`);
  return resource;
}

async function objectPath(agent: string, key: ObjectKey): Promise<string> {
  const resource = await resourceOf(agent, key);
  const part = encodeURIComponent;
  const namespace = resource.namespaced ? `/namespaces/${part(key.namespace)}` : "";
  return `${groupPath(key)}${namespace}/${part(resource.name)}/${part(key.name)}`;
}

export async function getObject(
  agent: string,
  key: ObjectKey,
  signal: AbortSignal,
): Promise<KubernetesObject> {
  return getJson<KubernetesObject>(kubernetesPath(agent, await objectPath(agent, key)), signal);
}

/** Returns the metadata of an object, without its contents. */
export async function getMetadata(
  agent: string,
  key: ObjectKey,
  signal: AbortSignal,
): Promise<KubernetesObject> {
  const headers = { Accept: "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1" };
  const response = await request(kubernetesPath(agent, await objectPath(agent, key)), { headers, signal });
  const object = await readJson<KubernetesObject>(response);
  // Of the answer, only the metadata are those of the object: the kind is `PartialObjectMetadata`. Nothing else is kept, because
  // a server that does not know this form sends the whole object.
  const apiVersion = key.group === "" ? key.version : `${key.group}/${key.version}`;
  return { apiVersion, kind: key.kind, metadata: object.metadata ?? {} };
}

/** Returns whether the caller may change an object, as `kubectl auth can-i` does. */
export async function mayChange(
  agent: string,
  key: ObjectKey,
  verb: string,
  subresource: string,
  signal: AbortSignal,
): Promise<boolean> {
  const { name: resource } = await resourceOf(agent, key);
  const { group, version, namespace, name } = key;
  const resourceAttributes = { group, version, resource, subresource, namespace, name, verb };
  const review = {
    ...{ apiVersion: "authorization.k8s.io/v1", kind: "SelfSubjectAccessReview" },
    spec: { resourceAttributes },
  };
  const path = kubernetesPath(agent, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews");
  const headers = { Accept: "application/json", "Content-Type": "application/json" };
  const response = await request(path, { method: "POST", headers, body: JSON.stringify(review), signal });
  const { status } = await readJson<{ status?: { allowed?: boolean } }>(response);
  return status?.allowed === true;
}

/** Changes an object. */
export async function changeObject(
  agent: string,
  key: ObjectKey,
  { method, subresource, contentType, body }: Change,
  signal: AbortSignal,
): Promise<void> {
  const path = `${await objectPath(agent, key)}${subresource === "" ? "" : `/${subresource}`}`;
  const query = method === "PATCH" ? "?fieldManager=kas-web" : "";
  const headers = { Accept: "application/json", "Content-Type": contentType };
  await request(kubernetesPath(agent, path + query), {
    method,
    headers,
    body: JSON.stringify(body),
    signal,
  });
}

/** Returns the names of the containers of a pod, those of its work first. */
export function containersOf(pod: KubernetesObject): string[] {
  const spec = (pod.spec ?? {}) as Record<string, { name: string }[] | undefined>;
  const lists = [spec.containers, spec.initContainers, spec.ephemeralContainers];
  return lists.flatMap((list) => (list ?? []).map(({ name }) => name));
}

/** Returns the events about an object, the newest first. */
export function getEvents(
  agent: string,
  namespace: string,
  uid: string,
  signal: AbortSignal,
): Promise<KubernetesEvent[]> {
  const place = namespace === "" ? "default" : namespace;
  return listEvents(agent, place, `involvedObject.uid=${uid}`, signal);
}

/** Returns the events of a namespace, or of all with the empty one, the newest first. */
export function getAllEvents(
  agent: string,
  namespace: string,
  signal: AbortSignal,
): Promise<KubernetesEvent[]> {
  return listEvents(agent, namespace, "", signal);
}

async function listEvents(
  agent: string,
  namespace: string,
  fieldSelector: string,
  signal: AbortSignal,
): Promise<KubernetesEvent[]> {
  const place = namespace === "" ? "" : `/namespaces/${encodeURIComponent(namespace)}`;
  const items: KubernetesEvent[] = [];
  let next = "";
  // The API server sorts them by their names, so that the newest ones are known when all are.
  do {
    const query = new URLSearchParams({ limit: "500" });
    if (fieldSelector !== "") query.set("fieldSelector", fieldSelector);
    if (next !== "") query.set("continue", next);
    const list = await getJson<{ items: KubernetesEvent[]; metadata?: { continue?: string } }>(
      kubernetesPath(agent, `/api/v1${place}/events?${query.toString()}`),
      signal,
    );
    items.push(...list.items);
    next = list.metadata?.continue ?? "";
  } while (next !== "" && items.length < MAX_EVENTS);
  return items.sort((one, other) => timeOf(other).localeCompare(timeOf(one)));
}

export function timeOf(event: KubernetesEvent): string {
  return event.lastTimestamp ?? event.eventTime ?? "";
}

export interface LogQuery {
  container: string;
  previous: boolean;
  follow: boolean;
  tailLines: number;
  /** Only lines since this time, unless it is empty. */
  sinceTime: string;
}

/** Returns the log of a container, with the time of each line. The body of the response may go on without an end. */
export function getLog(
  agent: string,
  key: ObjectKey,
  query: LogQuery,
  signal: AbortSignal,
): Promise<Response> {
  const parameters = new URLSearchParams({ tailLines: `${query.tailLines}`, timestamps: "true" });
  if (query.container !== "") parameters.set("container", query.container);
  if (query.previous) parameters.set("previous", "true");
  if (query.follow) parameters.set("follow", "true");
  if (query.sinceTime !== "") parameters.set("sinceTime", query.sinceTime);
  const part = encodeURIComponent;
  const path = `/api/v1/namespaces/${part(key.namespace)}/pods/${part(key.name)}/log?${parameters.toString()}`;
  return request(kubernetesPath(agent, path), { signal });
}
