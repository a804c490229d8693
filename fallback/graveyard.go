// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"slices"

	"github.com/tierlock/tierlock/tier/driver"
)

// graveyard remembers the latest holds that expired, so that whoever comes to
// unlock one learns what became of it. The entry itself is gone by then, and a
// holder who never comes must not be remembered for ever.
type graveyard struct {
	graves []grave
	oldest int
}

type grave struct {
	key    string
	holder driver.Token
}

const maxGraves = 1000

func (g *graveyard) bury(key string, holder driver.Token) {
	if len(g.graves) < maxGraves {
		g.graves = append(g.graves, grave{key, holder})
		return
	}
	g.graves[g.oldest] = grave{key, holder}
	g.oldest = (g.oldest + 1) % maxGraves
}

func (g *graveyard) has(key string, holder driver.Token) bool {
	return slices.Contains(g.graves, grave{key, holder})
}
