package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// cluster is the API server of a kubeconfig file.
type cluster struct {
	server *url.URL
	token  string
	// requests may use HTTP/2, upgrades may not.
	requests, upgrades *http.Transport
}

// kubeconfig has the keys that agentk reads. JSON is YAML, too.
type kubeconfig struct {
	CurrentContext string `yaml:"current-context"`
	Contexts       []struct {
		Name    string
		Context struct{ Cluster, User string }
	}
	Clusters []struct {
		Name    string
		Cluster struct {
			Server        string
			CA            string `yaml:"certificate-authority"`
			CAData        string `yaml:"certificate-authority-data"`
			ServerName    string `yaml:"tls-server-name"`
			SkipTLSVerify bool   `yaml:"insecure-skip-tls-verify"`
		}
	}
	Users []struct {
		Name string
		User struct {
			Token           string
			TokenFile       string `yaml:"tokenFile"`
			Certificate     string `yaml:"client-certificate"`
			CertificateData string `yaml:"client-certificate-data"`
			Key             string `yaml:"client-key"`
			KeyData         string `yaml:"client-key-data"`
		}
	}
}

// loadCluster reads the current context of a kubeconfig file.
func loadCluster(file string) (*cluster, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var config kubeconfig
	if err := yaml.Unmarshal(text, &config); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var clusterName, userName string
	for _, context := range config.Contexts {
		if context.Name == config.CurrentContext {
			clusterName, userName = context.Context.Cluster, context.Context.User
		}
	}
	c, settings := &cluster{}, &tls.Config{}
	for _, entry := range config.Clusters {
		if entry.Name != clusterName {
			continue
		}
		if c.server, err = url.Parse(strings.TrimSuffix(entry.Cluster.Server, "/")); err != nil {
			return nil, err
		}
		settings.ServerName, settings.InsecureSkipVerify = entry.Cluster.ServerName, entry.Cluster.SkipTLSVerify
		authority, err := pem(entry.Cluster.CA, entry.Cluster.CAData)
		if err != nil {
			return nil, err
		}
		if authority != nil {
			settings.RootCAs = x509.NewCertPool()
			settings.RootCAs.AppendCertsFromPEM(authority)
		}
	}
	if c.server == nil {
		return nil, fmt.Errorf("%s: the current context has no cluster", file)
	}
	for _, entry := range config.Users {
		if entry.Name != userName {
			continue
		}
		certificate, err := pem(entry.User.Certificate, entry.User.CertificateData)
		if err != nil {
			return nil, err
		}
		key, err := pem(entry.User.Key, entry.User.KeyData)
		if err != nil {
			return nil, err
		}
		if certificate != nil {
			pair, err := tls.X509KeyPair(certificate, key)
			if err != nil {
				return nil, err
			}
			settings.Certificates = []tls.Certificate{pair}
		}
		c.token = entry.User.Token
		if c.token == "" && entry.User.TokenFile != "" {
			token, err := os.ReadFile(entry.User.TokenFile)
			if err != nil {
				return nil, err
			}
			c.token = strings.TrimSpace(string(token))
		}
	}
	c.requests = &http.Transport{TLSClientConfig: settings, ForceAttemptHTTP2: true, TLSHandshakeTimeout: 10 * time.Second,
		ExpectContinueTimeout: time.Second}
	c.upgrades = &http.Transport{TLSClientConfig: settings.Clone(), TLSHandshakeTimeout: 10 * time.Second}
	return c, nil
}

// pem returns the content of a file, or the data beside it in base64, or nil without both.
func pem(file, data string) ([]byte, error) {
	if data != "" {
		return base64.StdEncoding.DecodeString(data)
	}
	if file == "" {
		return nil, nil
	}
	return os.ReadFile(file)
}

// send sends a request, as it is but for the token, and returns its response as it is: nothing is followed or retried above the transport.
func (c *cluster) send(request *http.Request) (*http.Response, error) {
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	if request.Header.Get("Upgrade") != "" {
		return c.upgrades.RoundTrip(request)
	}
	return c.requests.RoundTrip(request)
}

// version asks the API server for its version.
func (c *cluster) version(ctx context.Context) (*kubernetesVersion, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.server.JoinPath("version").String(), nil)
	if err != nil {
		return nil, err
	}
	response, err := c.send(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	version := new(kubernetesVersion)
	return version, json.NewDecoder(response.Body).Decode(version)
}
