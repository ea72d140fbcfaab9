// SPDX-License-Identifier: Apache-2.0

// Runs tests of Versity's suite by name, one after the other, a line of JSON for each: {"name", "error"}. The suite's own command runs groups alone,
// and prints its results in colours.
//
//	versity ENDPOINT REGION NAME...      keys: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY
//	versity                              names of all tests
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/versity/versitygw/tests/integration"
)

type result struct {
	Name  string `json:"name"`
	Error string `json:"error"`
}

// What is wrong, or "". Some tests fall over answers that they do not expect.
func run(test integration.IntTest, conf *integration.S3Conf) (what string) {
	defer func() {
		if p := recover(); p != nil {
			what = fmt.Sprint("panic: ", p)
		}
	}()
	if test == nil {
		return "no such test"
	}
	if err := test(conf); err != nil {
		return err.Error()
	}
	return ""
}

func main() {
	tests := integration.GetIntTests()
	if len(os.Args) < 3 {
		var names []string
		for name := range tests {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			fmt.Println(name)
		}
		return
	}
	out := json.NewEncoder(os.Stdout)
	os.Stdout = os.Stderr // what the suite prints
	conf := integration.NewS3Conf(integration.WithEndpoint(os.Args[1]), integration.WithRegion(os.Args[2]),
		integration.WithAccess(os.Getenv("AWS_ACCESS_KEY_ID")), integration.WithSecret(os.Getenv("AWS_SECRET_ACCESS_KEY")),
		integration.WithPartSize(5<<20), integration.WithConcurrency(1))
	for _, name := range os.Args[3:] {
		if err := out.Encode(result{name, run(tests[name], conf)}); err != nil {
			os.Exit(1)
		}
	}
}
