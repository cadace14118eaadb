// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Command apiclient is a container for the tests of the rig: it serves what it
// sees of its pod, so that a test can compare that with what the pod asked for.
//
//	/token      the reply of the API server to a review of its own token
//	/file?path= a file
//	/lookup?name= the addresses of a name
//	/env?name=  a variable
//	/write?path= whether a file can be created
//	/id         user and group
//	/exit?code= ends with the code
//	/dial?address= connects and tells whether that worked
//
// With the argument once it ends at once.
package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	authv1 "k8s.io/api/authentication/v1"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	fmt.Println("apiclient starts")
	if len(os.Args) > 1 && os.Args[1] == "once" {
		return
	}
	mux := http.NewServeMux()
	handle := func(path string, answer func(*http.Request) (string, error)) {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			text, err := answer(r)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			fmt.Fprint(w, text)
		})
	}
	handle("/token", whoAmI)
	handle("/file", func(r *http.Request) (string, error) {
		text, err := os.ReadFile(r.FormValue("path"))
		return string(text), err
	})
	handle("/lookup", func(r *http.Request) (string, error) {
		addresses, err := net.DefaultResolver.LookupHost(r.Context(), r.FormValue("name"))
		return fmt.Sprint(addresses), err
	})
	handle("/env", func(r *http.Request) (string, error) { return os.Getenv(r.FormValue("name")), nil })
	handle("/write", func(r *http.Request) (string, error) {
		return "written", os.WriteFile(r.FormValue("path"), []byte("x"), 0o600)
	})
	handle("/id", func(*http.Request) (string, error) { return fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid()), nil })
	handle("/dial", func(r *http.Request) (string, error) {
		conn, err := net.DialTimeout("tcp", r.FormValue("address"), 2*time.Second)
		if err != nil {
			return "", err
		}
		return conn.RemoteAddr().String(), conn.Close()
	})
	mux.HandleFunc("/exit", func(_ http.ResponseWriter, r *http.Request) {
		code, _ := strconv.Atoi(r.FormValue("code"))
		fmt.Println("apiclient exits by request")
		os.Exit(code)
	})
	server := &http.Server{Addr: ":8080", Handler: mux}
	go func() {
		<-ctx.Done()
		server.Shutdown(context.Background())
	}()
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// whoAmI asks the API server, with the token of the pod, who that is.
func whoAmI(r *http.Request) (string, error) {
	config, err := rest.InClusterConfig()
	if err != nil {
		return "", err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", err
	}
	token := config.BearerToken
	if path := r.FormValue("path"); path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		token = string(text)
	}
	review := &authv1.TokenReview{Spec: authv1.TokenReviewSpec{Token: token}}
	if audience := r.FormValue("audience"); audience != "" {
		review.Spec.Audiences = []string{audience}
	}
	review, err = client.AuthenticationV1().TokenReviews().Create(r.Context(), review, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%v %s %v", review.Status.Authenticated, review.Status.User.Username, review.Status.Audiences), nil
}
