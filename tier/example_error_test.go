// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"

	"github.com/tierlock/tierlock/tier"
	"github.com/tierlock/tierlock/tier/tiertest"
)

// A busy key is the client's to try again; a lock without its authority is ours
// to mend.
func ExampleError() {
	ctx, authority := context.Background(), tiertest.NewAuthority()
	locker, err := tier.New(nil, authority)
	if err != nil {
		fmt.Println(err)
		return
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lease, err := locker.TryAcquire(r.Context(), "payment"+r.URL.Path)
		if err != nil {
			refuse(w, err)
			return
		}
		defer func() { _ = lease.Release(r.Context()) }()
		w.WriteHeader(http.StatusNoContent)
	})
	ask := func(path string) {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequestWithContext(ctx, http.MethodPost, path, nil))
		fmt.Printf("%d, retry after %q\n", answer.Code, answer.Header().Get("Retry-After"))
	}

	other, err := locker.Acquire(ctx, "payment/acct-42")
	if err != nil {
		fmt.Println(err)
		return
	}
	ask("/acct-42")
	ask("/acct-43")
	fmt.Println(other.Release(ctx))
	authority.Down()
	ask("/acct-42")
	authority.Up()
	fmt.Println(locker.Close(ctx))
	// Output:
	// 409, retry after "1"
	// 204, retry after ""
	// <nil>
	// 503, retry after "1"
	// <nil>
}

func refuse(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError // a bad key, or a locker that was closed
	switch {
	case errors.Is(err, tier.ErrHeld):
		status = http.StatusConflict
	case errors.Is(err, tier.ErrUnavailable):
		status = http.StatusServiceUnavailable // and an alert
	}
	if refused, ok := errors.AsType[*tier.Error](err); ok && status != http.StatusInternalServerError {
		seconds := max(1, math.Ceil(refused.RetryAfter.Seconds())) // 0: nobody knows
		w.Header().Set("Retry-After", strconv.Itoa(int(seconds)))
	}
	http.Error(w, http.StatusText(status), status)
}
