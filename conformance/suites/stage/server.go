// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// serve is a model server. Every answer has x-stage-pod and the digest of the
// request's body, x-stage-digest. What it does of these is for the request:
//
//	x-stage-echo: yes      the answer's body is the request's
//	x-stage-stream: 90s    server-sent events for so long, ten a second
//	x-stage-break: yes     the connection is cut without an answer
func serve(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("server", flag.ContinueOnError)
	port := flags.Int("port", 3000, "to listen on")
	drain := flags.Duration("drain", 10*time.Minute, "how long answers may go on after a signal")
	cert := flags.String("cert-path", "", "folder with tls.crt and tls.key; empty: plaintext")
	if err := flags.Parse(args); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/metrics", idle)
	mux.HandleFunc("/", answer)
	server := &http.Server{Addr: fmt.Sprintf(":%d", *port), Handler: mux}
	over := make(chan error, 1)
	go func() {
		<-ctx.Done()
		late, cancel := context.WithTimeout(context.Background(), *drain)
		defer cancel()
		over <- server.Shutdown(late)
	}()
	var err error
	if *cert != "" {
		err = server.ListenAndServeTLS(*cert+"/tls.crt", *cert+"/tls.key")
	} else {
		err = server.ListenAndServe()
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-over
}

// idle is a page of metrics: some pickers shed requests for servers without.
func idle(w http.ResponseWriter, _ *http.Request) {
	io.WriteString(w, `vllm:num_requests_waiting{model_name="stage"} 0
vllm:num_requests_running{model_name="stage"} 0
vllm:kv_cache_usage_perc{model_name="stage"} 0
`)
}

func answer(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if r.Header.Get("x-stage-break") != "" {
		panic(http.ErrAbortHandler)
	}
	sum := sha256.Sum256(body)
	w.Header().Set("x-stage-pod", os.Getenv("POD_NAME"))
	w.Header().Set("x-stage-digest", hex.EncodeToString(sum[:]))
	if r.Header.Get("x-stage-echo") != "" {
		w.Header().Set("content-type", "application/octet-stream")
		w.Write(body)
		return
	}
	if length := r.Header.Get("x-stage-stream"); length != "" {
		d, err := time.ParseDuration(length)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		stream(w, r, d)
		return
	}
	w.Header().Set("content-type", "application/json")
	json.NewEncoder(w).Encode(map[string]any{
		"id": "stage", "object": "chat.completion", "model": "stage", "choices": []any{map[string]any{
			"index": 0, "finish_reason": "stop", "message": map[string]any{"role": "assistant", "content": os.Getenv("POD_NAME")},
		}},
		"usage": map[string]any{"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
	})
}

// stream sends numbered chunks of a completion, so that a gap can be seen.
func stream(w http.ResponseWriter, r *http.Request, length time.Duration) {
	w.Header().Set("content-type", "text/event-stream")
	const pause = 100 * time.Millisecond
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for i := range int(length / pause) {
		fmt.Fprintf(w, "data: {\"id\":\"stage\",\"object\":\"chat.completion.chunk\",\"model\":\"stage\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%d \"}}]}\n\n", i)
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
	}
	io.WriteString(w, "data: {\"id\":\"stage\",\"object\":\"chat.completion.chunk\",\"model\":\"stage\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
}
