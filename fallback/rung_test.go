// SPDX-License-Identifier: Apache-2.0

package fallback_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tierlock/tierlock/fallback"
)

func TestRung_text(t *testing.T) {
	for rung, name := range map[fallback.Rung]string{
		fallback.Retry: "retry", fallback.Local: "local", fallback.FailClosed: "fail_closed",
	} {
		require.Equal(t, name, rung.String())
		parsed, err := fallback.ParseRung(name)
		require.NoError(t, err)
		require.Equal(t, rung, parsed)
	}

	text, err := json.Marshal(fallback.Ladder{fallback.Retry, fallback.Local, fallback.FailClosed})
	require.NoError(t, err)
	require.JSONEq(t, `["retry","local","fail_closed"]`, string(text))
	var back fallback.Ladder
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, "[retry, local, fail_closed]", back.String())
}

func TestRung_unknown(t *testing.T) {
	for _, name := range []string{"", "none", "Retry", "fail-closed", "retry ", "rung 7"} {
		_, err := fallback.ParseRung(name)
		require.ErrorContains(t, err, "want retry, local or fail_closed", name)
		r := fallback.Local
		require.Error(t, r.UnmarshalText([]byte(name)))
		require.Equal(t, fallback.Local, r, "left as it was")
	}
	for _, r := range []fallback.Rung{fallback.None, 7} {
		_, err := r.MarshalText()
		require.Error(t, err)
		require.NotEmpty(t, r.String())
	}
}
