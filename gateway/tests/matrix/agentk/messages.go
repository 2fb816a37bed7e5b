package main

import (
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/anypb"
)

// The messages of GitLab's protocol. The protobuf library reads their fields from the tags, so that nothing is generated. Of the fields of
// a oneof, one is set.

// message makes a struct a message of protobuf.
type message struct{}

func (message) Reset()         {}
func (message) String() string { return "" }
func (message) ProtoMessage()  {}

type empty struct{ message }

type values struct {
	message
	Value []string `protobuf:"bytes,1,rep,name=value,proto3"`
}

type valueMap = map[string]*values

type metadata struct {
	message
	Meta valueMap `protobuf:"bytes,1,rep,name=meta,proto3" protobuf_key:"bytes,1,opt,name=key,proto3" protobuf_val:"bytes,2,opt,name=value,proto3"`
}

type chunk struct {
	message
	Data []byte `protobuf:"bytes,1,opt,name=data,proto3"`
}

// connectRequest is a step of agentk in a tunnel.
type connectRequest struct {
	message
	Descriptor *descriptor  `protobuf:"bytes,1,opt,name=descriptor,proto3"`
	Header     *metadata    `protobuf:"bytes,2,opt,name=header,proto3"`
	Message    *chunk       `protobuf:"bytes,3,opt,name=message,proto3"`
	Trailer    *metadata    `protobuf:"bytes,4,opt,name=trailer,proto3"`
	Error      *errorStatus `protobuf:"bytes,5,opt,name=error,proto3"`
}

type descriptor struct {
	message
	Agent *agentDescriptor `protobuf:"bytes,1,opt,name=agent_descriptor,proto3"`
}

type agentDescriptor struct {
	message
	Services []*service `protobuf:"bytes,1,rep,name=services,proto3"`
}

type service struct {
	message
	Name    string    `protobuf:"bytes,1,opt,name=name,proto3"`
	Methods []*method `protobuf:"bytes,2,rep,name=methods,proto3"`
}

type method struct {
	message
	Name string `protobuf:"bytes,1,opt,name=name,proto3"`
}

type errorStatus struct {
	message
	Status *status.Status `protobuf:"bytes,1,opt,name=status,proto3"`
}

// connectResponse is a step of kas in a tunnel.
type connectResponse struct {
	message
	RequestInfo *requestInfo `protobuf:"bytes,1,opt,name=request_info,proto3"`
	Message     *chunk       `protobuf:"bytes,2,opt,name=message,proto3"`
	CloseSend   *empty       `protobuf:"bytes,3,opt,name=close_send,proto3"`
}

type requestInfo struct {
	message
	MethodName string   `protobuf:"bytes,1,opt,name=method_name,proto3"`
	Meta       valueMap `protobuf:"bytes,2,rep,name=meta,proto3" protobuf_key:"bytes,1,opt,name=key,proto3" protobuf_val:"bytes,2,opt,name=value,proto3"`
}

// httpRequest is a part of a request.
type httpRequest struct {
	message
	Header      *requestHeader `protobuf:"bytes,1,opt,name=header,proto3"`
	Data        *chunk         `protobuf:"bytes,2,opt,name=data,proto3"`
	Trailer     *empty         `protobuf:"bytes,3,opt,name=trailer,proto3"`
	UpgradeData *chunk         `protobuf:"bytes,4,opt,name=upgrade_data,proto3"`
}

// requestHeader has the syntax of proto2, for the optional length.
type requestHeader struct {
	message
	Request       *requestHead `protobuf:"bytes,1,opt,name=request"`
	Extra         *anypb.Any   `protobuf:"bytes,2,opt,name=extra"`
	ContentLength *int64       `protobuf:"varint,3,opt,name=content_length"`
}

type requestHead struct {
	message
	Method string   `protobuf:"bytes,1,opt,name=method,proto3"`
	Header valueMap `protobuf:"bytes,2,rep,name=header,proto3" protobuf_key:"bytes,1,opt,name=key,proto3" protobuf_val:"bytes,2,opt,name=value,proto3"`
	Path   string   `protobuf:"bytes,3,opt,name=url_path,proto3"`
	Query  valueMap `protobuf:"bytes,4,rep,name=query,proto3" protobuf_key:"bytes,1,opt,name=key,proto3" protobuf_val:"bytes,2,opt,name=value,proto3"`
}

type headerExtra struct {
	message
	Identity *identity `protobuf:"bytes,1,opt,name=imp_config,proto3"`
}

type identity struct {
	message
	Username string      `protobuf:"bytes,1,opt,name=username,proto3"`
	Groups   []string    `protobuf:"bytes,2,rep,name=groups,proto3"`
	UID      string      `protobuf:"bytes,3,opt,name=uid,proto3"`
	Extra    []*extraKey `protobuf:"bytes,4,rep,name=extra,proto3"`
}

type extraKey struct {
	message
	Key    string   `protobuf:"bytes,1,opt,name=key,proto3"`
	Values []string `protobuf:"bytes,2,rep,name=val,proto3"`
}

// httpResponse is a part of a response.
type httpResponse struct {
	message
	Header      *responseHeader `protobuf:"bytes,1,opt,name=header,proto3"`
	Data        *chunk          `protobuf:"bytes,2,opt,name=data,proto3"`
	Trailer     *empty          `protobuf:"bytes,3,opt,name=trailer,proto3"`
	UpgradeData *chunk          `protobuf:"bytes,4,opt,name=upgrade_data,proto3"`
}

type responseHeader struct {
	message
	Response *responseHead `protobuf:"bytes,1,opt,name=response,proto3"`
}

type responseHead struct {
	message
	StatusCode int32    `protobuf:"varint,1,opt,name=status_code,proto3"`
	Status     string   `protobuf:"bytes,2,opt,name=status,proto3"`
	Header     valueMap `protobuf:"bytes,3,rep,name=header,proto3" protobuf_key:"bytes,1,opt,name=key,proto3" protobuf_val:"bytes,2,opt,name=value,proto3"`
}

type registerRequest struct {
	message
	AgentMeta *agentMeta `protobuf:"bytes,1,opt,name=agent_meta,proto3"`
	PodID     int64      `protobuf:"varint,2,opt,name=pod_id,proto3"`
}

type agentMeta struct {
	message
	Version           string             `protobuf:"bytes,1,opt,name=version,proto3"`
	CommitID          string             `protobuf:"bytes,2,opt,name=commit_id,proto3"`
	PodNamespace      string             `protobuf:"bytes,3,opt,name=pod_namespace,proto3"`
	PodName           string             `protobuf:"bytes,4,opt,name=pod_name,proto3"`
	KubernetesVersion *kubernetesVersion `protobuf:"bytes,5,opt,name=kubernetes_version,proto3"`
}

// kubernetesVersion is also the JSON of the API server at /version.
type kubernetesVersion struct {
	message
	Major      string `protobuf:"bytes,1,opt,name=major,proto3" json:"major"`
	Minor      string `protobuf:"bytes,2,opt,name=minor,proto3" json:"minor"`
	GitVersion string `protobuf:"bytes,3,opt,name=git_version,proto3" json:"gitVersion"`
	Platform   string `protobuf:"bytes,4,opt,name=platform,proto3" json:"platform"`
}

type configurationRequest struct {
	message
	CommitID     string     `protobuf:"bytes,1,opt,name=commit_id,proto3"`
	AgentMeta    *agentMeta `protobuf:"bytes,2,opt,name=agent_meta,proto3"`
	SkipRegister bool       `protobuf:"varint,3,opt,name=skip_register,proto3"`
}

type configurationResponse struct {
	message
	CommitID string `protobuf:"bytes,2,opt,name=commit_id,proto3"`
}

func marshal(m protoadapt.MessageV1) ([]byte, error) {
	return proto.Marshal(protoadapt.MessageV2Of(m))
}

func unmarshal(data []byte, m protoadapt.MessageV1) error {
	return proto.Unmarshal(data, protoadapt.MessageV2Of(m))
}

func toHeader(fields valueMap) map[string][]string {
	header := make(map[string][]string, len(fields))
	for name, field := range fields {
		header[name] = field.Value
	}
	return header
}

func fromHeader(header map[string][]string) valueMap {
	fields := make(valueMap, len(header))
	for name, field := range header {
		fields[name] = &values{Value: field}
	}
	return fields
}
