// A Terraform provider that has the AWS provider's schema and nothing else.
//
// STUB_SCHEMA names a file as tools/infra/aws_schema.py writes it. Under dev_overrides it makes `terraform validate` refuse blocks,
// arguments and types that the provider does not have, and serves `terraform test` with `mock_provider "aws" {}`, which asks a
// provider for its schema only. It cannot plan: nothing can be applied through it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"

	"github.com/hashicorp/terraform-plugin-go/tfprotov5"
	"github.com/hashicorp/terraform-plugin-go/tfprotov5/tf5server"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// block is a block of the schema: attributes by name as [type, flags], nested blocks by name as [nesting, min, max, block].
type block struct {
	Attributes map[string]attribute   `json:"attributes"`
	Blocks     map[string]nestedBlock `json:"blocks"`
}

type attribute struct {
	kind  tftypes.Type
	flags string
}

type nestedBlock struct {
	nesting  tfprotov5.SchemaNestedBlockNestingMode
	min, max int64
	block    block
}

type schema struct {
	Provider  block            `json:"provider"`
	Resources map[string]block `json:"resources"`
	Data      map[string]block `json:"data"`
}

var nestings = map[string]tfprotov5.SchemaNestedBlockNestingMode{
	"list":   tfprotov5.SchemaNestedBlockNestingModeList,
	"set":    tfprotov5.SchemaNestedBlockNestingModeSet,
	"map":    tfprotov5.SchemaNestedBlockNestingModeMap,
	"single": tfprotov5.SchemaNestedBlockNestingModeSingle,
}

func (a *attribute) UnmarshalJSON(raw []byte) error {
	var parts [2]json.RawMessage
	if err := json.Unmarshal(raw, &parts); err != nil {
		return err
	}
	kind, err := readType(parts[0])
	if err != nil {
		return err
	}
	a.kind = kind
	return json.Unmarshal(parts[1], &a.flags)
}

func (n *nestedBlock) UnmarshalJSON(raw []byte) error {
	var parts [4]json.RawMessage
	if err := json.Unmarshal(raw, &parts); err != nil {
		return err
	}
	var nesting string
	for i, target := range []any{&nesting, &n.min, &n.max, &n.block} {
		if err := json.Unmarshal(parts[i], target); err != nil {
			return err
		}
	}
	mode, known := nestings[nesting]
	if !known {
		return fmt.Errorf("nesting %q is not known", nesting)
	}
	n.nesting = mode
	return nil
}

// readType reads Terraform's JSON form of a type constraint.
func readType(raw json.RawMessage) (tftypes.Type, error) {
	var name string
	if json.Unmarshal(raw, &name) == nil {
		switch name {
		case "string":
			return tftypes.String, nil
		case "number":
			return tftypes.Number, nil
		case "bool":
			return tftypes.Bool, nil
		case "dynamic":
			return tftypes.DynamicPseudoType, nil
		}
		return nil, fmt.Errorf("type %q is not known", name)
	}
	var parts [2]json.RawMessage
	if err := json.Unmarshal(raw, &parts); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(parts[0], &name); err != nil {
		return nil, err
	}
	if name == "object" {
		var members map[string]json.RawMessage
		if err := json.Unmarshal(parts[1], &members); err != nil {
			return nil, err
		}
		types := map[string]tftypes.Type{}
		for member, form := range members {
			of, err := readType(form)
			if err != nil {
				return nil, err
			}
			types[member] = of
		}
		return tftypes.Object{AttributeTypes: types}, nil
	}
	of, err := readType(parts[1])
	if err != nil {
		return nil, err
	}
	switch name {
	case "list":
		return tftypes.List{ElementType: of}, nil
	case "set":
		return tftypes.Set{ElementType: of}, nil
	case "map":
		return tftypes.Map{ElementType: of}, nil
	}
	return nil, fmt.Errorf("type %q is not known", name)
}

func (b block) forTerraform() *tfprotov5.SchemaBlock {
	made := &tfprotov5.SchemaBlock{}
	for _, name := range sortedKeys(b.Attributes) {
		a := b.Attributes[name]
		made.Attributes = append(made.Attributes, &tfprotov5.SchemaAttribute{
			Name: name, Type: a.kind,
			Required: strings.Contains(a.flags, "r"), Optional: strings.Contains(a.flags, "o"), Computed: strings.Contains(a.flags, "c"),
		})
	}
	for _, name := range sortedKeys(b.Blocks) {
		n := b.Blocks[name]
		nested := &tfprotov5.SchemaNestedBlock{TypeName: name, Nesting: n.nesting, Block: n.block.forTerraform()}
		if n.nesting == tfprotov5.SchemaNestedBlockNestingModeList || n.nesting == tfprotov5.SchemaNestedBlockNestingModeSet {
			nested.MinItems, nested.MaxItems = n.min, n.max
		}
		made.BlockTypes = append(made.BlockTypes, nested)
	}
	return made
}

func sortedKeys[V any](of map[string]V) []string {
	keys := make([]string, 0, len(of))
	for key := range of {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}

// server answers what validate and mocked tests ask; anything else is not implemented and panics.
type server struct {
	tfprotov5.ProviderServer
	schema schema
}

func (s *server) GetMetadata(context.Context, *tfprotov5.GetMetadataRequest) (*tfprotov5.GetMetadataResponse, error) {
	found := &tfprotov5.GetMetadataResponse{ServerCapabilities: &tfprotov5.ServerCapabilities{}}
	for name := range s.schema.Resources {
		found.Resources = append(found.Resources, tfprotov5.ResourceMetadata{TypeName: name})
	}
	for name := range s.schema.Data {
		found.DataSources = append(found.DataSources, tfprotov5.DataSourceMetadata{TypeName: name})
	}
	return found, nil
}

func (s *server) GetProviderSchema(context.Context, *tfprotov5.GetProviderSchemaRequest) (*tfprotov5.GetProviderSchemaResponse, error) {
	found := &tfprotov5.GetProviderSchemaResponse{
		ServerCapabilities: &tfprotov5.ServerCapabilities{},
		Provider:           &tfprotov5.Schema{Block: s.schema.Provider.forTerraform()},
		ResourceSchemas:    map[string]*tfprotov5.Schema{},
		DataSourceSchemas:  map[string]*tfprotov5.Schema{},
	}
	for name, of := range s.schema.Resources {
		found.ResourceSchemas[name] = &tfprotov5.Schema{Block: of.forTerraform()}
	}
	for name, of := range s.schema.Data {
		found.DataSourceSchemas[name] = &tfprotov5.Schema{Block: of.forTerraform()}
	}
	return found, nil
}

func (s *server) ValidateResourceTypeConfig(context.Context, *tfprotov5.ValidateResourceTypeConfigRequest) (*tfprotov5.ValidateResourceTypeConfigResponse, error) {
	return &tfprotov5.ValidateResourceTypeConfigResponse{}, nil
}

func (s *server) ValidateDataSourceConfig(context.Context, *tfprotov5.ValidateDataSourceConfigRequest) (*tfprotov5.ValidateDataSourceConfigResponse, error) {
	return &tfprotov5.ValidateDataSourceConfigResponse{}, nil
}

func (s *server) PrepareProviderConfig(_ context.Context, r *tfprotov5.PrepareProviderConfigRequest) (*tfprotov5.PrepareProviderConfigResponse, error) {
	return &tfprotov5.PrepareProviderConfigResponse{PreparedConfig: r.Config}, nil
}

func (s *server) ConfigureProvider(context.Context, *tfprotov5.ConfigureProviderRequest) (*tfprotov5.ConfigureProviderResponse, error) {
	return &tfprotov5.ConfigureProviderResponse{}, nil
}

func (s *server) StopProvider(context.Context, *tfprotov5.StopProviderRequest) (*tfprotov5.StopProviderResponse, error) {
	return &tfprotov5.StopProviderResponse{}, nil
}

func main() {
	raw, err := os.ReadFile(os.Getenv("STUB_SCHEMA"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "STUB_SCHEMA names no schema that can be read:", err)
		os.Exit(1)
	}
	s := schema{}
	if err := json.Unmarshal(raw, &s); err != nil {
		fmt.Fprintln(os.Stderr, "the schema cannot be read:", err)
		os.Exit(1)
	}
	if err := tf5server.Serve("firn.test/hashicorp/aws", func() tfprotov5.ProviderServer { return &server{schema: s} }); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
